#include "worker/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "worker/tokenizer/scratch_pool.h"
#include "worker/tokenizer/unicode.h"
#include "worker/tokenizer/word_cache.h"

namespace telar::tokenizer {
namespace {

constexpr size_t kMostMergedBytes = size_t{1} << 30;  // Longer words are merged in parts: positions are 32 bits.

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts)
      : parts_(std::move(parts)),
        as_written_(std::move(parts_.added_as_written)),
        normalized_(std::move(parts_.added_normalized)) {}

  int32_t vocab_size() const override { return parts_.vocabulary.size(); }
  int32_t end_of_document() const override { return parts_.end_of_document; }

  std::optional<int32_t> find(std::string_view text) const override {
    const auto found = parts_.texts.find(text);
    return found == parts_.texts.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  struct Scratch {
    explicit Scratch(Cutter::State state) : cut(std::move(state)) {}
    Cutter::State cut;
    Merges::Scratch merges;
    WordCache cache;
    std::string normalized;
  };

  void do_encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const override {
    const auto scratch = scratches_.borrow([this] { return std::make_unique<Scratch>(parts_.cutter->make_state()); });
    const auto token = [&ids](int32_t id) { ids.push_back(id); };
    if (options.template_tokens) ids.insert(ids.end(), parts_.template_before.begin(), parts_.template_before.end());
    as_written_.split(
        text, options.special_tokens,
        [&](std::string_view section) {
          if (parts_.nfc) section = to_nfc(section, scratch->normalized);
          normalized_.split(
              section, options.special_tokens,
              [&](std::string_view plain) {
                parts_.cutter->cut(plain, scratch->cut,
                                   [&](std::string_view word) { append_word(word, *scratch, ids); });
              },
              token);
        },
        token);
    if (options.template_tokens) ids.insert(ids.end(), parts_.template_after.begin(), parts_.template_after.end());
  }

  absl::StatusOr<std::string> do_decode(std::span<const int32_t> ids, bool special_tokens) const override {
    return parts_.vocabulary.decode(ids, special_tokens);
  }

  void append_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
    if (word.size() > WordCache::kMostBytes) {
      merge_word(word, scratch, ids);
      return;
    }
    const WordCache::Key key(word);
    const size_t place = key.place();
    if (scratch.cache.find(key, place, ids)) return;
    const size_t before = ids.size();
    merge_word(word, scratch, ids);
    scratch.cache.put(key, place, std::span<const int32_t>(ids).subspan(before));
  }

  void merge_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
    if (parts_.whole_words) {
      if (const auto whole = parts_.words.find(word); whole != parts_.words.end()) {
        ids.push_back(whole->second);
        return;
      }
    }
    for (; !word.empty(); word.remove_prefix(std::min(word.size(), kMostMergedBytes))) {
      parts_.merges.encode(word.substr(0, kMostMergedBytes), parts_.byte_ids, scratch.merges, ids);
    }
  }

  BpeParts parts_;  // Without the added tokens.
  const AddedTokens as_written_;
  const AddedTokens normalized_;
  mutable ScratchPool<Scratch> scratches_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeParts parts) {
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace telar::tokenizer
