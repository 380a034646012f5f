// What the command line of telar-coordinator says of security; part of options.h.
#pragma once

#include <string>
#include <vector>

#include "common/tls.h"

namespace telar::server {

struct SecurityOptions {
  TlsFiles tls;
  std::string tokens;     // See server/auth/tokens.h.
  std::string revoked;    // See server/auth/revoked.h.
  std::string audit_log;  // Default: <data>/audit.jsonl; "off": none.
  bool insecure_listen = false;
  std::vector<std::string> allowed_roots;  // See common/roots.h.
  double user_rate = 100;                  // Calls a second.
  int user_streams = 64;
};

// Adds what is wrong: parts that do not go together, roots that are no absolute paths, and ports that everybody could
// reach with nobody at the door.
void check_security(const SecurityOptions& options, const std::string& listen, const std::string& http,
                    const std::string& run_root, std::vector<std::string>& mistakes);

}  // namespace telar::server
