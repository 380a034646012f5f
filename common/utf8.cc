#include "common/utf8.h"

namespace telar {

size_t utf8_character(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const auto follows = [&](size_t i, int least, int most) { return byte(i) >= least && byte(i) <= most; };
  if (at >= text.size()) return 0;
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

std::string well_formed(std::string_view text, size_t most) {
  std::string good;
  for (size_t at = 0; at < text.size();) {
    const size_t size = utf8_character(text, at);
    if (good.size() + (size == 0 ? 1 : size) > most) break;
    if (size == 0) {
      good += '?';
      ++at;
    } else {
      good += text.substr(at, size);
      at += size;
    }
  }
  return good;
}

}  // namespace telar
