#include "client/spec/problem.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace telar::client {
namespace {
constexpr size_t kMostShown = 60;
}

std::string to_string(const Problem& problem) {
  const std::string place =
      problem.place.line > 0 ? absl::StrCat(":", problem.place.line, ":", problem.place.column) : "";
  return absl::StrCat(problem.file, place, ": ", problem.field, problem.field.empty() ? "" : ": ", problem.text);
}

std::string quote(const std::string& text) {
  std::string shown = "'";
  size_t i = 0;
  for (; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool inside_character = (byte & 0xc0) == 0x80;  // Never cut a UTF-8 character in two.
    if (i >= kMostShown && !inside_character) break;
    if (byte == '\n') {
      shown += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", byte);
      shown += code;
    } else {
      shown += text[i];
    }
  }
  return shown + (i < text.size() ? "..." : "") + "'";
}

}  // namespace telar::client
