#include "worker/tokenizer/pattern.h"
#include "worker/tokenizer/unicode.h"

namespace telar::tokenizer {

// As Hugging Face's ByteLevel has it, and OpenAI's first release.
const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// tiktoken's own; differs from Llama 3's in white space at the end of a text.
const std::string_view kCl100kPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
const std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// GPT-2's pattern as tiktoken spells it today: the same words.
constexpr std::string_view kGpt2Possessive =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";

// A text under the table of classes. Positions are bytes.
class Scan {
 public:
  Scan(std::string_view text, const uint8_t* table) : text_(text), table_(table) {}

  // The class of the character at `at`, and where the next one begins. 0 behind the end.
  uint8_t at(size_t at, size_t& next) const {
    if (at >= text_.size()) {
      next = at;
      return 0;
    }
    const auto byte = static_cast<unsigned char>(text_[at]);
    if (byte < 0x80) {
      next = at + 1;
      return table_[byte];
    }
    const Character character = character_at(text_, at);
    next = at + character.length;
    return character.code == kNoCodePoint ? kOther : table_[character.code];
  }

  // Behind the characters from `at` on that have a bit of `mask`.
  size_t run(size_t at, uint8_t mask) const {
    for (size_t next; this->at(at, next) & mask; at = next) {
    }
    return at;
  }

  // The same, up to `most` of them.
  size_t run(size_t at, uint8_t mask, int most) const {
    for (size_t next; most > 0 && (this->at(at, next) & mask); --most) at = next;
    return at;
  }

  bool is(size_t at, char byte) const { return at < text_.size() && text_[at] == byte; }
  bool is_newline(size_t at) const { return is(at, '\n') || is(at, '\r'); }

  // Bytes of 's 't 're 've 'm 'll 'd at `at`, where an apostrophe stands; 0 for none. `any_case` takes upper case and
  // the long s, whose other case is S.
  size_t contraction(size_t at, bool any_case) const {
    const std::string_view rest = text_.substr(at + 1);
    const auto letter = [&](size_t index) {
      if (index >= rest.size()) return '\0';
      const char byte = rest[index];
      return any_case && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + ('a' - 'A')) : byte;
    };
    const char first = letter(0);
    const char second = letter(1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) return 3;
    return any_case && rest.starts_with("\u017F") ? 3 : 0;
  }

  // White space from `at` on, where some stands: all of it at the end of the text, else all but its last character,
  // but at least one. (\s+(?!\S)|\s+)
  size_t space(size_t at) const {
    size_t last = at;
    size_t end = at;
    for (size_t next; this->at(end, next) & kSpace; end = next) last = end;
    return end == text_.size() || last == at ? end : last;
  }

  // Behind the last line break of the white space at `at`; `at` if there is none.
  size_t lines(size_t at) const {
    size_t behind = at;
    size_t next;
    for (size_t here = at; this->at(here, next) & kSpace; here = next) {
      if (is_newline(here)) behind = next;
    }
    return behind;
  }

  size_t size() const { return text_.size(); }

 private:
  const std::string_view text_;
  const uint8_t* const table_;
};

// These patterns match at every position, so that a match begins at `from` and next() tells its end.
template <typename Rules>
class Known : public Pattern {
 public:
  explicit Known(Rules rules) : rules_(rules), table_(classes()) {}
  bool find(State*, std::string_view text, size_t from, Match& match) const override {
    if (from >= text.size()) return false;
    match = {from, rules_.next(Scan(text, table_), from)};
    return true;
  }

 private:
  const Rules rules_;
  const uint8_t* const table_;
};

struct Gpt2Rules {
  size_t next(const Scan& text, size_t at) const {
    if (text.is(at, '\'')) {
      if (const size_t bytes = text.contraction(at, false)) return at + bytes;
    }
    size_t behind;
    uint8_t found = text.at(at, behind);
    if (text.is(at, ' ')) {
      size_t second;
      const uint8_t after = text.at(behind, second);
      if (after != 0 && !(after & kSpace)) {
        found = after;
        behind = second;
      }
    }
    if (found & kSpace) return text.space(at);
    return text.run(behind, found & (kLetter | kNumber | kOther));
  }
};

// What cl100k, Llama 3 and Qwen 2 have in common.
struct Cl100kRules {
  int digits;          // Most in a word.
  bool keep_trailing;  // White space at the end of the text is one word, line breaks or not.

  size_t next(const Scan& text, size_t at) const {
    if (text.is(at, '\'')) {
      if (const size_t bytes = text.contraction(at, true)) return at + bytes;
    }
    size_t behind;
    const uint8_t found = text.at(at, behind);
    if (found & kLetter) return text.run(behind, kLetter);
    if (found & kNumber) return text.run(behind, kNumber, digits - 1);
    size_t second;
    const uint8_t after = text.at(behind, second);
    if ((after & kLetter) && !text.is_newline(at)) return text.run(second, kLetter);
    if ((found & kOther) || (text.is(at, ' ') && (after & kOther))) {
      size_t end = text.run(behind, kOther);
      while (text.is_newline(end)) ++end;
      return end;
    }
    if (keep_trailing) {
      const size_t end = text.run(at, kSpace);
      if (end == text.size()) return end;
    }
    const size_t end = text.lines(at);
    return end != at ? end : text.space(at);
  }
};

struct O200kRules {
  static constexpr uint8_t kUpperOrCaseless = kUpper | kCaseless | kMark;
  static constexpr uint8_t kLowerOrCaseless = kLower | kCaseless | kMark;

  size_t next(const Scan& text, size_t at) const {
    size_t behind;
    const uint8_t found = text.at(at, behind);
    const bool may_lead = !(found & (kLetter | kNumber)) && !text.is_newline(at);
    for (const auto word : {lower_word, upper_word}) {
      size_t end = may_lead ? word(text, behind) : 0;
      if (end == 0) end = word(text, at);
      if (end != 0) return end + (text.is(end, '\'') ? text.contraction(end, true) : 0);
    }
    if (found & kNumber) return text.run(behind, kNumber, 2);
    size_t second;
    if ((found & kOther) || (text.is(at, ' ') && (text.at(behind, second) & kOther))) {
      size_t end = text.run(behind, kOther);
      while (text.is_newline(end) || text.is(end, '/')) ++end;
      return end;
    }
    const size_t end = text.lines(at);
    return end != at ? end : text.space(at);
  }

  // [upper or caseless]*[lower or caseless]+; 0 for no match.
  static size_t lower_word(const Scan& text, size_t at) {
    size_t caseless = 0;  // Behind the last character that is of both sets.
    size_t end = at;
    size_t next;
    for (uint8_t found; (found = text.at(end, next)) & kUpperOrCaseless; end = next) {
      if (found & kLowerOrCaseless) caseless = next;
    }
    const size_t lower = text.run(end, kLowerOrCaseless);
    return lower != end ? lower : caseless;
  }
  // [upper or caseless]+[lower or caseless]*, where lower_word() did not match; 0 for no match.
  static size_t upper_word(const Scan& text, size_t at) {
    const size_t end = text.run(at, kUpperOrCaseless);
    return end != at ? end : 0;
  }
};

class LiteralPattern : public Pattern {
 public:
  explicit LiteralPattern(std::string literal) : literal_(std::move(literal)) {}
  bool find(State*, std::string_view text, size_t from, Match& match) const override {
    const size_t at = text.find(literal_, from);
    if (at == std::string_view::npos) return false;
    match = {at, at + literal_.size()};
    return true;
  }

 private:
  const std::string literal_;
};

class DigitPattern : public Pattern {
 public:
  bool find(State*, std::string_view text, size_t from, Match& match) const override {
    const Scan scan(text, table_);
    for (size_t at = from, next; at < text.size(); at = next) {
      if (scan.at(at, next) & kNumber) {
        match = {at, next};
        return true;
      }
    }
    return false;
  }

 private:
  const uint8_t* const table_ = classes();
};

}  // namespace

std::unique_ptr<Pattern> make_known_pattern(std::string_view text) {
  if (text == kGpt2Pattern || text == kGpt2Possessive) return std::make_unique<Known<Gpt2Rules>>(Gpt2Rules{});
  if (text == kCl100kPattern) return std::make_unique<Known<Cl100kRules>>(Cl100kRules{3, true});
  if (text == kLlama3Pattern) return std::make_unique<Known<Cl100kRules>>(Cl100kRules{3, false});
  if (text == kQwen2Pattern) return std::make_unique<Known<Cl100kRules>>(Cl100kRules{1, false});
  if (text == kO200kPattern) return std::make_unique<Known<O200kRules>>(O200kRules{});
  return nullptr;
}

std::unique_ptr<Pattern> make_literal_pattern(std::string text) {
  return std::make_unique<LiteralPattern>(std::move(text));
}

std::unique_ptr<Pattern> make_digit_pattern() { return std::make_unique<DigitPattern>(); }

}  // namespace telar::tokenizer
