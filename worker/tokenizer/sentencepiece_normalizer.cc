#include <cstring>

#include "absl/status/status.h"
#include "worker/tokenizer/sentencepiece_model.h"
#include "worker/tokenizer/unicode.h"

namespace telar::tokenizer {
namespace {

constexpr std::string_view kEscapedSpace = "\u2581";
constexpr std::string_view kReplacement = "\uFFFD";

}  // namespace

absl::StatusOr<SentencePieceNormalizer> SentencePieceNormalizer::create(const SentencePieceModel::Normalization& rules,
                                                                        bool whitespace_as_suffix,
                                                                        const ByteTrie& user_defined) {
  SentencePieceNormalizer made;
  made.add_dummy_prefix_ = rules.add_dummy_prefix;
  made.remove_extra_whitespaces_ = rules.remove_extra_whitespaces;
  made.escape_whitespaces_ = rules.escape_whitespaces;
  made.whitespace_as_suffix_ = whitespace_as_suffix;
  made.user_defined_ = &user_defined;
  if (!rules.table.empty()) {
    // The bytes of the double array, the array, the replacements.
    uint32_t bytes = 0;
    if (rules.table.size() >= sizeof(bytes)) std::memcpy(&bytes, rules.table.data(), sizeof(bytes));
    if (bytes == 0 || bytes % sizeof(uint32_t) != 0 || bytes > rules.table.size() - sizeof(bytes)) {
      return absl::InvalidArgumentError("normalizer_spec.precompiled_charsmap: its sizes contradict each other");
    }
    made.units_.resize(bytes / sizeof(uint32_t));
    std::memcpy(made.units_.data(), rules.table.data() + sizeof(bytes), bytes);
    made.replacements_ = rules.table.substr(sizeof(bytes) + bytes);
    made.replacements_.push_back('\0');
  }
  return made;
}

std::pair<uint32_t, size_t> SentencePieceNormalizer::longest(std::string_view text) const {
  // A unit: bits 0-7 the byte that leads to it, 8 whether a key ends there, 9 whether the offset is in 256s, 10-30 the
  // offset; of a leaf, bits 0-30 the value. Nothing tells that offsets stay inside the array.
  std::pair<uint32_t, size_t> best{0, 0};
  if (units_.empty()) return best;
  const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); };
  uint32_t node = offset(units_[0]);
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    node ^= byte;
    if (node >= units_.size()) return best;
    const uint32_t unit = units_[node];
    if ((unit & (1u << 31 | 0xFF)) != byte) return best;
    node ^= offset(unit);
    if (unit >> 8 & 1) {
      if (node >= units_.size()) return best;
      const uint32_t value = units_[node] & ~(1u << 31);
      if (value < replacements_.size()) best = {value, at + 1};
    }
  }
  return best;
}

std::pair<std::string_view, size_t> SentencePieceNormalizer::prefix(std::string_view text) const {
  if (user_defined_ != nullptr) {
    size_t end = 0;
    if (user_defined_->longest(text, 0, end) != ByteTrie::kNone) return {text.substr(0, end), end};
  }
  const auto [value, length] = longest(text);
  if (length > 0) return {std::string_view(replacements_.data() + value), length};
  const Character character = character_at(text, 0);
  if (character.code == kNoCodePoint) return {kReplacement, 1};
  return {text.substr(0, character.length), character.length};
}

std::string SentencePieceNormalizer::normalize(std::string_view text) const {
  std::string out;
  while (remove_extra_whitespaces_ && !text.empty()) {
    const auto [replaced, length] = prefix(text);
    if (replaced != " ") break;
    text.remove_prefix(length);
  }
  if (text.empty()) return out;
  const std::string_view space = escape_whitespaces_ ? kEscapedSpace : " ";
  out.reserve(text.size() + text.size() / 2);
  if (!whitespace_as_suffix_ && add_dummy_prefix_) out.append(space);
  bool behind_space = remove_extra_whitespaces_;
  while (!text.empty()) {
    auto [replaced, length] = prefix(text);
    while (behind_space && replaced.starts_with(' ')) replaced.remove_prefix(1);
    for (const char byte : replaced) {
      if (byte == ' ') {
        out.append(space);
      } else {
        out.push_back(byte);
      }
    }
    if (!replaced.empty()) behind_space = replaced.ends_with(' ');
    behind_space = behind_space && remove_extra_whitespaces_;
    text.remove_prefix(length);
  }
  while (remove_extra_whitespaces_ && out.ends_with(space)) out.resize(out.size() - space.size());
  if (whitespace_as_suffix_ && add_dummy_prefix_) out.append(space);
  return out;
}

}  // namespace telar::tokenizer
