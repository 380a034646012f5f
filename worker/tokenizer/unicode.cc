#include "worker/tokenizer/unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace telar::tokenizer {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

bool is_white_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

uint8_t class_of(uint32_t code) {
  uint8_t found = is_white_space(code) ? kSpace : 0;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return found | kLetter | kUpper;
    case UTF8PROC_CATEGORY_LL:
      return found | kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return found | kLetter | kCaseless;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return found | kNumber;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      found |= kMark;
      break;
    default:
      break;
  }
  return (found & kSpace) ? found : found | kOther;
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

std::vector<utf8proc_int32_t> composed(const std::vector<utf8proc_int32_t>& codes) {
  // A code point has at most 4 canonical parts.
  std::vector<utf8proc_int32_t> parts(codes.size() * 4);
  utf8proc_ssize_t count = 0;
  for (const utf8proc_int32_t code : codes) {
    count += utf8proc_decompose_char(code, parts.data() + count, static_cast<utf8proc_ssize_t>(parts.size()) - count,
                                     UTF8PROC_DECOMPOSE, nullptr);
  }
  // Marks in canonical order.
  const auto combining = [](utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; };
  const auto end = parts.begin() + count;
  for (auto run = parts.begin(); run != end;) {
    run = std::find_if(run, end, [&](auto code) { return combining(code) != 0; });
    const auto stop = std::find_if(run, end, [&](auto code) { return combining(code) == 0; });
    std::stable_sort(run, stop, [&](auto left, auto right) { return combining(left) < combining(right); });
    run = stop;
  }
  count =
      utf8proc_normalize_utf32(parts.data(), count, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  parts.resize(static_cast<size_t>(count));
  return parts;
}

// Whether a code point keeps itself whatever stands beside it: no mark, no part of a Hangul syllable, composed already.
class InertTable {
 public:
  InertTable() : inert_(kCodePoints) {
    const uint8_t* table = classes();
    for (uint32_t code = 0; code < kCodePoints; ++code) inert_[code] = decide(code, table[code]);
  }
  bool has(uint32_t code) const { return code >= kCodePoints || inert_[code]; }

 private:
  static bool decide(uint32_t code, uint8_t found) {
    if (code < 0x300) return true;
    if ((found & kMark) || (code >= 0x1100 && code <= 0x11FF)) return false;
    if (code >= 0xAC00 && code <= 0xD7A3) return true;
    const utf8proc_property_t* about = utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
    if (about->combining_class != 0) return false;
    if (about->decomp_seqindex == UINT16_MAX || about->decomp_type != 0) return true;
    return composed({static_cast<utf8proc_int32_t>(code)}) ==
           std::vector<utf8proc_int32_t>{static_cast<utf8proc_int32_t>(code)};
  }
  std::vector<bool> inert_;
};

}  // namespace

Character character_at(std::string_view text, size_t at) {
  const auto byte = [text, at](size_t offset) { return static_cast<unsigned char>(text[at + offset]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t left = text.size() - at;
  const Character bad{kNoCodePoint, 1};
  if (lead < 0xC2 || lead > 0xF4) return bad;
  if (left < 2 || !is_continuation(text[at + 1])) return bad;
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  if (left < 3 || !is_continuation(text[at + 2])) return bad;
  if (lead < 0xF0) {
    const uint32_t code = (lead & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
    if (code < 0x800 || (code >= 0xD800 && code <= 0xDFFF)) return bad;
    return {code, 3};
  }
  if (left < 4 || !is_continuation(text[at + 3])) return bad;
  const uint32_t code = (lead & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
  if (code < 0x10000 || code > 0x10FFFF) return bad;
  return {code, 4};
}

void append_utf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
    return;
  }
  if (code < 0x800) {
    out.push_back(static_cast<char>(0xC0 | code >> 6));
  } else {
    if (code < 0x10000) {
      out.push_back(static_cast<char>(0xE0 | code >> 12));
    } else {
      out.push_back(static_cast<char>(0xF0 | code >> 18));
      out.push_back(static_cast<char>(0x80 | (code >> 12 & 0x3F)));
    }
    out.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
  }
  out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (character.code == kNoCodePoint) return false;
    at += character.length;
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (character.code == '\n') {
      out.append("\\n");
    } else if (character.code == kNoCodePoint || character.code < 0x20 || character.code == 0x7F) {
      fmt::format_to(std::back_inserter(out), "\\x{:02X}", static_cast<unsigned char>(text[at]));
    } else {
      out.append(text.substr(at, character.length));
    }
    at += character.length;
  }
  return out;
}

const uint8_t* classes() {
  static const std::unique_ptr<const uint8_t[]> table = [] {
    auto made = std::make_unique<uint8_t[]>(kCodePoints);
    for (uint32_t code = 0; code < kCodePoints; ++code) made[code] = class_of(code);
    return made;
  }();
  return table.get();
}

bool is_word(uint32_t code) {
  if (code >= kCodePoints) return false;
  if (classes()[code] & (kLetter | kMark)) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  const bool other_alphabetic = (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
                                (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC ||
         code == 0x200C || code == 0x200D || other_alphabetic;
}

std::string_view to_nfc(std::string_view text, std::string& buffer) {
  static const InertTable inert;
  buffer.clear();
  size_t copied = 0;         // Bytes of `text` that are in `buffer`.
  size_t starter = 0;        // Where the last inert character began.
  bool has_starter = false;  // Whether it touches what comes now.
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (inert.has(character.code)) {
      starter = at;
      has_starter = character.code != kNoCodePoint;
      at += character.length;
      continue;
    }
    // From the starter before to the next inert character.
    const size_t first = has_starter ? starter : at;
    std::vector<utf8proc_int32_t> codes;
    for (at = first; at < text.size();) {
      const Character next = character_at(text, at);
      if (at != first && inert.has(next.code)) break;
      codes.push_back(static_cast<utf8proc_int32_t>(next.code));
      at += next.length;
    }
    has_starter = false;
    buffer.append(text.substr(copied, first - copied));
    for (const utf8proc_int32_t code : composed(codes)) append_utf8(static_cast<uint32_t>(code), buffer);
    copied = at;
  }
  if (copied == 0) return text;
  buffer.append(text.substr(copied));
  return buffer;
}

}  // namespace telar::tokenizer
