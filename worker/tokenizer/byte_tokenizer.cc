#include "absl/strings/str_cat.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::tokenizer {
namespace {

constexpr std::string_view kEndText = "<|endoftext|>";

class ByteTokenizer : public Tokenizer {
 public:
  int32_t vocab_size() const override { return kByteVocab; }
  int32_t end_of_document() const override { return kByteEndOfDocument; }

  std::optional<int32_t> find(std::string_view text) const override {
    if (text == kEndText) return kByteEndOfDocument;
    if (text.size() == 1) return static_cast<unsigned char>(text[0]);
    return std::nullopt;
  }

 private:
  void do_encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    while (!text.empty()) {
      if (options.special_tokens && text.starts_with(kEndText)) {
        ids.push_back(kByteEndOfDocument);
        text.remove_prefix(kEndText.size());
      } else {
        ids.push_back(static_cast<unsigned char>(text[0]));
        text.remove_prefix(1);
      }
    }
  }

  absl::StatusOr<std::string> do_decode(std::span<const int32_t> ids, bool special_tokens) const override {
    std::string bytes;
    bytes.reserve(ids.size());
    for (size_t at = 0; at < ids.size(); ++at) {
      if (ids[at] < 0 || ids[at] >= kByteVocab) {
        return absl::OutOfRangeError(
            absl::StrCat("token ", at, ": id ", ids[at], " is outside the byte vocabulary of ", kByteVocab));
      }
      if (ids[at] != kByteEndOfDocument) {
        bytes.push_back(static_cast<char>(ids[at]));
      } else if (special_tokens) {
        bytes.append(kEndText);
      }
    }
    return bytes;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace telar::tokenizer
