// UTF-8, the classes of characters that the patterns speak of, and normalization form C. Unicode 15.0 (utf8proc 2.8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace telar::tokenizer {

inline constexpr uint32_t kNoCodePoint = 0xFFFFFFFF;

struct Character {
  uint32_t code;    // kNoCodePoint for a byte that belongs to no well-formed sequence.
  uint32_t length;  // Bytes; 1 for such a byte.
};

// The character that begins at `at`, which is below text.size().
Character character_at(std::string_view text, size_t at);
void append_utf8(uint32_t code, std::string& out);
bool is_utf8(std::string_view text);

// For people to read: one line of valid UTF-8, line breaks as \n, other controls and what is not UTF-8 as \xNN.
std::string printable(std::string_view text);

// Bits of a character's class; a character has all that apply.
inline constexpr uint8_t kLetter = 1;      // \p{L}
inline constexpr uint8_t kNumber = 2;      // \p{N}
inline constexpr uint8_t kSpace = 4;       // \p{White_Space}
inline constexpr uint8_t kMark = 8;        // \p{M}
inline constexpr uint8_t kUpper = 16;      // \p{Lu}\p{Lt}
inline constexpr uint8_t kLower = 32;      // \p{Ll}
inline constexpr uint8_t kOther = 64;      // [^\s\p{L}\p{N}], bytes that are no character among them.
inline constexpr uint8_t kCaseless = 128;  // \p{Lm}\p{Lo}

// The classes of all code points, 0x110000 of them; made once in a process, in some milliseconds.
const uint8_t* classes();

// What Rust's `regex` means by \w: letters, other alphabetic characters, marks, decimal digits, connectors, joiners.
bool is_word(uint32_t code);

// `text` in normalization form C; what is not UTF-8 passes through as it is, and parts what is on its sides. Returns
// `text` itself where nothing changes, else a view of `buffer`.
std::string_view to_nfc(std::string_view text, std::string& buffer);

}  // namespace telar::tokenizer
