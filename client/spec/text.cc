#include "client/spec/text.h"

#include <cstdint>
#include <optional>

namespace telar::client {
namespace {

// Bytes of the character at `at`; 0 when it is not UTF-8.
size_t character_size(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const auto follows = [&](size_t i, int least, int most) { return byte(i) >= least && byte(i) <= most; };
  const int first = byte(at);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(at + 1, 0x80, 0xbf) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const bool second = follows(at + 1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf);
    return second && follows(at + 2, 0x80, 0xbf) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool second = follows(at + 1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf);
    return second && follows(at + 2, 0x80, 0xbf) && follows(at + 3, 0x80, 0xbf) ? 4 : 0;
  }
  return 0;
}

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
    const size_t size = character_size(text, at);
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
