#include "server/auth/revoked.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace telar::server::auth {

absl::StatusOr<Revoked> Revoked::parse(const std::string& text) {
  Revoked revoked;
  std::vector<std::string> mistakes;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const std::string word(absl::StripAsciiWhitespace(line.substr(0, line.find('#'))));
    if (word.empty()) continue;
    const std::string hex = absl::AsciiStrToLower(absl::StrReplaceAll(word, {{":", ""}}));
    if (hex.size() == 64 && hex.find_first_not_of("0123456789abcdef") == std::string::npos) {
      revoked.fingerprints_.insert(hex);
    } else if (word.find_first_of(" \t:/") != std::string::npos) {
      mistakes.push_back(absl::StrCat("line ", number, ": '", word, "' is neither a node's name nor a SHA-256"));
    } else {
      revoked.nodes_.insert(word);
    }
  }
  if (!mistakes.empty()) return absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n"));
  return revoked;
}

}  // namespace telar::server::auth
