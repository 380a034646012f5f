#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "worker/tokenizer/sentencepiece_model.h"
#include "worker/tokenizer/unicode.h"

namespace telar::tokenizer {
namespace {

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
  made.find_plain();
  return made;
}

// A unit: bits 0-7 the byte that leads to it, 8 whether a key ends there, 9 whether the offset is in 256s, 10-30 the
// offset; of a leaf, bits 0-30 the value. Nothing tells that offsets stay inside the array.
uint32_t SentencePieceNormalizer::offset(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

uint32_t SentencePieceNormalizer::root() const { return units_.empty() ? 0 : offset(units_[0]); }

const uint32_t* SentencePieceNormalizer::step(uint32_t& node, unsigned char byte) const {
  node ^= byte;
  if (node >= units_.size() || (units_[node] & (1u << 31 | 0xFF)) != byte) return nullptr;
  const uint32_t* unit = &units_[node];
  node ^= offset(*unit);
  return unit;
}

// ASCII that no key begins with, or only keys that go on with another character than ASCII.
void SentencePieceNormalizer::find_plain() {
  for (int byte = 0; byte < 0x80; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    if (user_defined_ != nullptr && user_defined_->begins_with(static_cast<unsigned char>(byte))) continue;
    bool before_ascii = longest(one).second == 0;
    for (int next = 0; before_ascii && next < 0x80; ++next) {
      before_ascii = !leads_on(one + static_cast<char>(next));
    }
    if (before_ascii) plain_[byte] = leads_on(one) ? kBeforeAscii : kAlways;
  }
}

bool SentencePieceNormalizer::leads_on(std::string_view text) const {
  uint32_t node = root();
  return std::all_of(text.begin(), text.end(),
                     [&](char byte) { return step(node, static_cast<unsigned char>(byte)) != nullptr; });
}

std::pair<uint32_t, size_t> SentencePieceNormalizer::longest(std::string_view text) const {
  std::pair<uint32_t, size_t> best{0, 0};
  uint32_t node = root();
  for (size_t at = 0; at < text.size(); ++at) {
    const uint32_t* unit = step(node, static_cast<unsigned char>(text[at]));
    if (unit == nullptr) return best;
    if (*unit >> 8 & 1) {  // A key ends here; its leaf has the value.
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

void SentencePieceNormalizer::normalize(std::string_view text, std::string& out) const {
  out.clear();
  while (remove_extra_whitespaces_ && !text.empty()) {
    const auto [replaced, length] = prefix(text);
    if (replaced != " ") break;
    text.remove_prefix(length);
  }
  if (text.empty()) return;
  const std::string_view space = escape_whitespaces_ ? kSpaceSymbol : " ";
  out.reserve(text.size() + text.size() / 2);
  if (!whitespace_as_suffix_ && add_dummy_prefix_) out.append(space);
  bool behind_space = remove_extra_whitespaces_;
  while (!text.empty()) {
    size_t plain = 0;  // Bytes that stay as they are.
    while (plain < text.size() && text[plain] != ' ' && is_plain(text, plain)) ++plain;
    if (plain > 0) {
      out.append(text.substr(0, plain));
      text.remove_prefix(plain);
      behind_space = false;
      continue;
    }
    auto [replaced, length] = is_plain(text, 0) ? std::pair(text.substr(0, 1), size_t{1}) : prefix(text);
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
}

}  // namespace telar::tokenizer
