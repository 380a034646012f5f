#include "client/commands/token.h"

#include <sys/random.h>

#include <array>
#include <ostream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "common/errors.h"
#include "common/tls.h"

namespace telar::client {
namespace {

std::vector<Violation> check(const TokenNewOptions& options) {
  std::vector<Violation> found;
  if (options.user.empty() || options.user.find_first_of(" \t\r\n#=,*\"\\") != std::string::npos) {
    found.push_back({"--user", absl::StrCat("'", options.user, "' is no name without spaces and any of #=,*\"\\")});
  }
  for (const std::string& role : options.roles) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(role, absl::MaxSplits('=', 1));
    const bool known =
        pair.second == "viewer" || pair.second == "submitter" || pair.second == "operator" || pair.second == "admin";
    if (pair.first.empty() || pair.first.find_first_of(" \t\r\n#,") != std::string::npos || !known) {
      found.push_back({"--role", absl::StrCat("'", role, "' is not PROJECT=ROLE (or *=ROLE) with one of viewer, ",
                                              "submitter, operator, admin")});
    }
  }
  return found;
}

}  // namespace

int token_new(Context& context, const TokenNewOptions& options) {
  if (const auto found = check(options); !found.empty()) return report(context, invalid(found));
  std::array<char, 32> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return report(context, absl::InternalError("the kernel gives no random numbers"));
  }
  const std::string token = absl::StrCat("telar_", absl::BytesToHexString({random.data(), random.size()}));
  const absl::Time expiry = absl::FromChrono(context.clock.wall()) + absl::Hours(24) * options.days;
  const std::string until =
      options.days == 0 ? "never" : absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", expiry, absl::UTCTimeZone());
  context.out() << token << "\n"
                << absl::StrJoin({options.user, sha256_hex(token), absl::StrJoin(options.roles, ","), until}, "  ")
                << "\n"
                << std::flush;
  context.err() << "the first line is the token, for its user; the second is for the coordinator's --tokens file\n"
                << std::flush;
  return kOk;
}

}  // namespace telar::client
