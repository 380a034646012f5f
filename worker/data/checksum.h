// Sums that tell whether a file is the one that was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace telar::data {

// CRC-32C (Castagnoli) of what `previous` covers followed by `bytes`; 0 is that of nothing.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous = 0);

// SHA-256 of the parts one behind the other, in lower-case hex.
std::string sha256(const std::vector<std::string_view>& parts);

}  // namespace telar::data
