#include "absl/strings/str_cat.h"
#include "worker/data/tokenizer.h"

namespace telar::data {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  int32_t vocab_size() const override { return kByteVocab; }
  int32_t end_of_document() const override { return kByteEndOfDocument; }

  std::vector<int32_t> encode(std::string_view bytes) const override {
    std::vector<int32_t> ids;
    ids.reserve(bytes.size());
    for (const char byte : bytes) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
  }

  absl::StatusOr<std::string> decode(std::span<const int32_t> ids) const override {
    std::string bytes;
    bytes.reserve(ids.size());
    for (size_t at = 0; at < ids.size(); ++at) {
      if (ids[at] == kByteEndOfDocument) continue;
      if (ids[at] < 0 || ids[at] >= kByteVocab) {
        return absl::OutOfRangeError(
            absl::StrCat("token ", at, ": id ", ids[at], " is outside the byte vocabulary of ", kByteVocab));
      }
      bytes.push_back(static_cast<char>(ids[at]));
    }
    return bytes;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace telar::data
