// The tokens of people: --tokens FILE, one a line, which holds their SHA-256 only.
//
//   # user   SHA-256 of the token, in hex   roles                      expiry
//   alice    9f86d081...                    default=submitter,lab=viewer  2027-01-01T00:00:00Z
//   ops      60303ae2...                    *=admin                    never
//
// A token is 256 random bits, so that one fast hash is enough: nobody finds the token from it. A user may have several
// lines, which is how a token is replaced without a gap.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "server/auth/caller.h"

namespace telar::server::auth {

class Tokens {
 public:
  // INVALID_ARGUMENT: every faulty line, by number.
  static absl::StatusOr<Tokens> parse(const std::string& text);

  // UNAUTHENTICATED: UNKNOWN_TOKEN, or TOKEN_EXPIRED with its user and date.
  absl::StatusOr<Caller> find(const std::string& token, Clock::Wall now) const;
  // Whether a token of this hash is known and not expired.
  bool holds(const std::string& hash, Clock::Wall now) const;
  size_t size() const { return by_hash_.size(); }

 private:
  struct Entry {
    std::string user;
    std::map<std::string, Role> roles;
    Clock::Wall expiry = Clock::Wall::max();
  };
  friend class TokenReader;
  std::map<std::string, Entry> by_hash_;
};

}  // namespace telar::server::auth
