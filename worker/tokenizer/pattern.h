// The patterns by which text is cut into words.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace telar::tokenizer {

struct Match {
  size_t begin = 0;
  size_t end = 0;  // Above `begin`: empty matches are passed over.
};

// Immutable; from several threads at once, each with a state of its own.
class Pattern {
 public:
  // What a search needs beside the pattern.
  class State {
   public:
    virtual ~State() = default;
  };

  virtual ~Pattern() = default;
  virtual std::unique_ptr<State> make_state() const { return nullptr; }
  // Before the first find() in a text, which must outlive the search.
  virtual void begin(State*, std::string_view) const {}
  // The leftmost match that begins at `from` or behind it; false if there is none. What stands before `from` counts as
  // context. A byte that belongs to no well-formed UTF-8 sequence is a character of no class.
  virtual bool find(State* state, std::string_view text, size_t from, Match& match) const = 0;
};

// As the real libraries cut: GPT-2's, tiktoken's three, Llama 3's and Qwen 2's. Their texts:
extern const std::string_view kGpt2Pattern;
extern const std::string_view kCl100kPattern;
extern const std::string_view kO200kPattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwen2Pattern;

// A matcher written by hand, if `text` is the text of a pattern that has one; else null.
std::unique_ptr<Pattern> make_known_pattern(std::string_view text);

// PCRE2 with \s meaning what it means to the real libraries (White_Space). INVALID_ARGUMENT, without the pattern, for
// what PCRE2 cannot compile and for what the libraries read differently: \w, \b, ^ and set operations in a class. $ is
// the end of the text (tiktoken), or is refused, too: to Oniguruma, of Hugging Face, it is the end of a line.
enum class Dollar { kEndOfText, kRefused };
absl::StatusOr<std::unique_ptr<Pattern>> make_pcre_pattern(std::string_view text, Dollar dollar);

// One of the two.
absl::StatusOr<std::unique_ptr<Pattern>> make_pattern(std::string_view text, Dollar dollar);

// The text itself, which is not empty.
std::unique_ptr<Pattern> make_literal_pattern(std::string text);

// One character of \p{N}.
std::unique_ptr<Pattern> make_digit_pattern();

}  // namespace telar::tokenizer
