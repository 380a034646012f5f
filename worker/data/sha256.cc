#include "worker/data/sha256.h"

#include <openssl/evp.h>
#include <memory>

#include "absl/strings/escaping.h"

namespace telar::data {

std::string sha256(const std::vector<std::string_view>& parts) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  std::string digest(32, '\0');
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  for (const std::string_view part : parts) EVP_DigestUpdate(context.get(), part.data(), part.size());
  EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return absl::BytesToHexString(digest);
}

}  // namespace telar::data
