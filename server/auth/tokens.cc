#include "server/auth/tokens.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/tls.h"

namespace telar::server::auth {
namespace {

constexpr size_t kMostName = 128;
constexpr size_t kHashDigits = 64;

bool is_name(const std::string& text) {
  return !text.empty() && text.size() <= kMostName && text.find_first_of("\",\\=*") == std::string::npos &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c < 127; });
}

bool is_hash(const std::string& text) {
  return text.size() == kHashDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

class TokenReader {
 public:
  absl::StatusOr<Tokens> read(const std::string& text) {
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      ++number_;
      const std::string content(line.substr(0, line.find('#')));
      const std::vector<std::string> words = absl::StrSplit(content, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
      if (!words.empty()) add(words);
    }
    if (!mistakes_.empty()) return absl::InvalidArgumentError(absl::StrJoin(mistakes_, "\n"));
    return std::move(tokens_);
  }

 private:
  void mistake(const std::string& text) { mistakes_.push_back(absl::StrCat("line ", number_, ": ", text)); }

  void add(const std::vector<std::string>& words) {
    if (words.size() != 4) {
      return mistake(absl::StrCat(words.size(), " words; wanted are user, SHA-256, roles and expiry"));
    }
    Tokens::Entry entry;
    entry.user = words[0];
    if (!is_name(words[0])) mistake(absl::StrCat("user '", words[0], "' has characters that no name may have"));
    if (!is_hash(words[1]))
      mistake(absl::StrCat("of user ", words[0], ": the SHA-256 must be 64 digits of 0-9 and a-f"));
    read_roles(words[2], entry);
    read_expiry(words[3], entry);
    if (!tokens_.by_hash_.emplace(words[1], std::move(entry)).second) {
      mistake(absl::StrCat("of user ", words[0], ": the same token stands on an earlier line"));
    }
  }
  void read_roles(const std::string& text, Tokens::Entry& entry) {
    const std::vector<std::string> all = absl::StrSplit(text, ',');
    for (const std::string& one : all) {
      const std::pair<std::string, std::string> pair = absl::StrSplit(one, absl::MaxSplits('=', 1));
      Role role = Role::kNone;
      if (pair.first != kEveryProject && !is_name(pair.first)) {
        mistake(absl::StrCat("'", one, "' is not PROJECT=ROLE, or *=ROLE for every project"));
      } else if (!parse_role(pair.second, role)) {
        mistake(absl::StrCat("'", pair.second, "' is none of viewer, submitter, operator, admin"));
      } else {
        entry.roles[pair.first] = std::max(entry.roles[pair.first], role);
      }
    }
  }
  void read_expiry(const std::string& text, Tokens::Entry& entry) {
    if (text == "never") return;
    absl::Time time;
    std::string problem;
    if (absl::ParseTime(absl::RFC3339_full, text, &time, &problem)) {
      entry.expiry = absl::ToChronoTime(time);
    } else {
      mistake(absl::StrCat("'", text, "' is neither 'never' nor a time such as 2027-01-31T12:00:00Z"));
    }
  }

  Tokens tokens_;
  std::vector<std::string> mistakes_;
  int number_ = 0;
};

absl::StatusOr<Tokens> Tokens::parse(const std::string& text) { return TokenReader().read(text); }

absl::StatusOr<Caller> Tokens::find(const std::string& token, Clock::Wall now) const {
  // What a comparison's time tells of a hash is of no use: nobody can choose tokens by their hashes.
  const std::string hash = sha256_hex(token);
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end()) {
    return error(absl::StatusCode::kUnauthenticated, "UNKNOWN_TOKEN", "the coordinator does not know this token");
  }
  const Entry& entry = found->second;
  if (entry.expiry <= now) {
    return error(
        absl::StatusCode::kUnauthenticated, "TOKEN_EXPIRED",
        absl::StrCat("the token of ", entry.user, " expired on ",
                     absl::FormatTime(absl::RFC3339_sec, absl::FromChrono(entry.expiry), absl::UTCTimeZone())));
  }
  return Caller{Caller::Kind::kPerson, entry.user, entry.roles, hash};
}

bool Tokens::holds(const std::string& hash, Clock::Wall now) const {
  const auto found = by_hash_.find(hash);
  return found != by_hash_.end() && found->second.expiry > now;
}

}  // namespace telar::server::auth
