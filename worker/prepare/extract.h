// The text of one document, out of the bytes that stand in an input file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace telar::prepare {

// Why a document cannot be taken, and where.
struct Fault {
  uint64_t line = 0;    // From 1.
  uint64_t column = 0;  // Byte in that line, from 1; 0: all of it.
  std::string what;
};

// Offset of the first byte that does not belong to well-formed UTF-8 (RFC 3629: shortest forms, no surrogates, at most
// U+10FFFF); npos: there is none.
size_t find_invalid_utf8(std::string_view text);

// Text that begins in line `line`; the fault is invalid UTF-8.
std::optional<Fault> check_text(std::string_view text, uint64_t line);

// The string that the member `field` of the JSON object in `json` has; of several members of that name the last one
// counts. Faults: invalid UTF-8, invalid JSON, no object, no such member, not a string.
std::optional<Fault> json_text(std::string_view json, const std::string& field, uint64_t line, std::string& text);

}  // namespace telar::prepare
