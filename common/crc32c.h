// CRC-32C (Castagnoli), as of RFC 3720 B.4: reflected, started at and inverted with all ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace telar {

// The CRC of what `previous` covers followed by `bytes`; 0 is the CRC of nothing. "123456789" gives e3069283.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous = 0);
uint32_t crc32c(std::string_view bytes, uint32_t previous = 0);

// Eight lower-case hex digits, and back; nothing for any other text.
std::string crc_text(uint32_t crc);
std::optional<uint32_t> parse_crc(std::string_view text);

}  // namespace telar
