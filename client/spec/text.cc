#include "client/spec/text.h"

#include <cstdint>
#include <optional>

#include "common/utf8.h"

namespace telar::client {
namespace {

// The four hex digits of "\uXXXX" at `at`.
std::optional<uint32_t> escape_at(const std::string& text, size_t at) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return std::nullopt;
  uint32_t value = 0;
  for (size_t i = at + 2; i < at + 6; ++i) {
    const char c = text[i];
    uint32_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint32_t>(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<uint32_t>(c - 'A' + 10);
    } else {
      return std::nullopt;
    }
    value = value * 16 + digit;
  }
  return value;
}

}  // namespace

Place first_bad_byte(const std::string& text) {
  Place place{1, 1};
  for (size_t at = 0; at < text.size();) {
    const size_t size = utf8_character(text, at);
    if (size == 0 || text[at] == '\0') return place;
    if (text[at] == '\n') {
      ++place.line;
      place.column = 1;
    } else {
      ++place.column;
    }
    at += size;
  }
  return {};
}

std::string join_surrogates(const std::string& text) {
  std::string joined;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto high = escape_at(text, at);
    const auto low = high ? escape_at(text, at + 6) : std::nullopt;
    if (high && low && *high >= 0xd800 && *high < 0xdc00 && *low >= 0xdc00 && *low < 0xe000) {
      const uint32_t point = 0x10000 + ((*high - 0xd800) << 10) + (*low - 0xdc00);
      joined += static_cast<char>(0xf0 | (point >> 18));
      joined += static_cast<char>(0x80 | ((point >> 12) & 0x3f));
      joined += static_cast<char>(0x80 | ((point >> 6) & 0x3f));
      joined += static_cast<char>(0x80 | (point & 0x3f));
      at += 11;
      continue;
    }
    joined += text[at];
    if (text[at] == '\\' && at + 1 < text.size() && text[at + 1] == '\\')
      joined += text[++at];  // An escaped backslash.
  }
  return joined;
}

}  // namespace telar::client
