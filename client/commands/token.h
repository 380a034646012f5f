// `telar token`: tokens for the coordinator's --tokens file.
#pragma once

#include <string>
#include <vector>

#include "client/commands/context.h"

namespace telar::client {

struct TokenNewOptions {
  std::string user;
  std::vector<std::string> roles;  // "project=role" or "*=role".
  int days = 90;                   // Until it expires; 0: never.
};
// Prints a new token, which is nowhere else, and the line for the file. Asks no coordinator.
int token_new(Context& context, const TokenNewOptions& options);

}  // namespace telar::client
