#include "server/security_options.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/channel.h"
#include "common/roots.h"

namespace telar::server {

void check_security(const SecurityOptions& options, const std::string& listen, const std::string& http,
                    const std::string& run_root, std::vector<std::string>& mistakes) {
  const bool tls = options.tls.any();
  if (tls && options.tokens.empty()) {
    mistakes.push_back("--tokens: is missing; with --tls-cert it says which people may do what");
  }
  if (!tls && !options.tokens.empty()) {
    mistakes.push_back("--tokens: goes with --tls-cert, --tls-key and --tls-ca; a token must not travel in plain text");
  }
  if (!tls && !options.revoked.empty()) mistakes.push_back("--revoked: goes with --tls-cert, --tls-key and --tls-ca");
  const std::pair<const char*, const std::string*> addresses[] = {{"--listen", &listen}, {"--http", &http}};
  for (const auto& [flag, address] : addresses) {
    if (tls || options.insecure_listen || is_loopback(*address)) continue;
    mistakes.push_back(absl::StrCat(flag, ": ", *address,
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
