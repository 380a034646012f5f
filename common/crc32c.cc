#include "common/crc32c.h"

#include <isa-l/crc.h>
#include <algorithm>

#include "absl/strings/str_format.h"

namespace telar {

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous) {
  constexpr size_t kMostAtOnce = size_t{1} << 30;  // The library counts in int, and neither starts nor ends inverted.
  uint32_t state = ~previous;
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kMostAtOnce);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(count), state);
    bytes = bytes.subspan(count);
  }
  return ~state;
}

uint32_t crc32c(std::string_view bytes, uint32_t previous) {
  return crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())), previous);
}

std::string crc_text(uint32_t crc) { return absl::StrFormat("%08x", crc); }

std::optional<uint32_t> parse_crc(std::string_view text) {
  if (text.size() != 8 || text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  return static_cast<uint32_t>(std::stoul(std::string(text), nullptr, 16));
}

}  // namespace telar
