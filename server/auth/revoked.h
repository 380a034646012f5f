// Nodes that are trusted no longer: --revoked FILE, one a line: a node's name, or the SHA-256 of one certificate (as
// `openssl x509 -fingerprint -sha256` prints it, with or without colons). "#" begins a comment.
#pragma once

#include <set>
#include <string>

#include "absl/status/statusor.h"

namespace telar::server::auth {

class Revoked {
 public:
  static absl::StatusOr<Revoked> parse(const std::string& text);  // INVALID_ARGUMENT names every faulty line.
  bool empty() const { return nodes_.empty() && fingerprints_.empty(); }
  bool contains(const std::string& node, const std::string& fingerprint) const {
    return nodes_.count(node) != 0 || fingerprints_.count(fingerprint) != 0;
  }

 private:
  std::set<std::string> nodes_, fingerprints_;
};

}  // namespace telar::server::auth
