#include "worker/data/checksum.h"

#include <isa-l/crc.h>
#include <openssl/evp.h>
#include <algorithm>
#include <memory>

#include "absl/strings/escaping.h"

namespace telar::data {

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

std::string sha256(const std::vector<std::string_view>& parts) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  std::string digest(32, '\0');
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  for (const std::string_view part : parts) EVP_DigestUpdate(context.get(), part.data(), part.size());
  EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return absl::BytesToHexString(digest);
}

}  // namespace telar::data
