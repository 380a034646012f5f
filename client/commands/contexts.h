// The contexts file: where coordinators are and how to talk to them, by name.
//
//   current: lab
//   contexts:
//     lab: {coordinator: "lab.example:7070", tls_ca: /home/a/lab-ca.pem, token_file: /home/a/.lab-token, project: nlp}
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/commands/context.h"

namespace telar::client {

// What the command line or the environment has already said.
struct GivenOptions {
  bool coordinator = false;
  bool tls_ca = false;
  bool token_file = false;
  bool project = false;
};

// Fills in what was not given from the context `name`, or, if that is empty, from the file's current one. No file, and
// no name: nothing happens. INVALID_ARGUMENT: the file is not as it should be, or has no such context.
absl::Status apply_context(const std::string& path, const std::string& name, const GivenOptions& given,
                           Options& options);

// $TELAR_CONTEXTS, or telar/contexts.yaml below $XDG_CONFIG_HOME or ~/.config.
std::string contexts_path();

}  // namespace telar::client
