#include "server/security_options.h"

#include "absl/strings/str_cat.h"
#include "common/roots.h"

namespace telar::server {

bool is_loopback(const std::string& listen) {
  return listen.rfind("127.", 0) == 0 || listen.rfind("localhost:", 0) == 0 || listen.rfind("[::1]:", 0) == 0 ||
         listen.rfind("unix:", 0) == 0;
}

void check_security(const SecurityOptions& options, const std::string& listen, const std::string& run_root,
                    std::vector<std::string>& mistakes) {
  const bool tls = options.tls.any();
  if (tls && options.tokens.empty()) {
    mistakes.push_back("--tokens: is missing; with --tls-cert it says which people may do what");
  }
  if (!tls && !options.tokens.empty()) {
    mistakes.push_back("--tokens: goes with --tls-cert, --tls-key and --tls-ca; a token must not travel in plain text");
  }
  if (!tls && !options.revoked.empty()) mistakes.push_back("--revoked: goes with --tls-cert, --tls-key and --tls-ca");
  if (!tls && !options.insecure_listen && !is_loopback(listen)) {
    mistakes.push_back(absl::StrCat("--listen: ", listen,
                                    " can be reached from other machines, and without --tls-cert, --tls-key, --tls-ca "
                                    "and --tokens everybody there could do everything; set those, listen on 127.0.0.1, "
                                    "or give --insecure-listen on a network where everybody is trusted"));
  }
  for (const std::string& root : options.allowed_roots) {
    if (root.empty() || root.front() != '/' || root.find(':') != std::string::npos) {
      mistakes.push_back(absl::StrCat("--allowed-root: '", root, "' is not an absolute path without ':'"));
    }
  }
  if (const std::string outside = Roots(options.allowed_roots).problem(run_root); !outside.empty()) {
    mistakes.push_back(absl::StrCat("--run-root: ", outside));
  }
  if (!(options.user_rate > 0)) mistakes.push_back("--user-rate: must be above 0");
  if (options.user_streams < 1) mistakes.push_back("--user-streams: must be at least 1");
}

}  // namespace telar::server
