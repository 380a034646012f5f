// What is UTF-8 and what is not (RFC 3629: no overlong forms, no surrogates, nothing beyond U+10FFFF). Strings of
// protobuf's must be: one that is not is sent, or stored, and cannot be read again.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace telar {

// Bytes of the character that begins at `at`; 0: none does.
size_t utf8_character(std::string_view text, size_t at);

// The first `most` bytes or fewer, cut between characters, with a '?' for each byte that belongs to none.
std::string well_formed(std::string_view text, size_t most = std::string_view::npos);

}  // namespace telar
