// Text into words: what Hugging Face calls a pre-tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker/tokenizer/pattern.h"

namespace telar::tokenizer {

// What becomes of a pattern's matches and of what stands between them.
enum class Behaviour : uint8_t {
  kIsolated,            // Each is a piece.
  kRemoved,             // What stands between is a piece.
  kMergedWithPrevious,  // A match ends the piece before it.
  kMergedWithNext,      // A match begins the piece behind it.
  kContiguous,          // Matches that touch are one piece.
};

// Steps, each of which cuts the pieces that the one before it left. Immutable; from several threads at once, each with
// a state of its own.
class Cutter {
 public:
  struct Step {
    std::unique_ptr<Pattern> pattern;  // Null: does not cut.
    Behaviour behaviour = Behaviour::kIsolated;
    bool invert = false;        // What stands between matches counts as matches, and the other way round.
    bool prefix_space = false;  // Before cutting, a space is put before a piece that begins with none.
  };
  class State {
   private:
    friend class Cutter;
    struct Part {
      size_t begin;
      size_t end;
      bool match;
    };
    struct OfStep {
      std::unique_ptr<Pattern::State> pattern;
      std::string prefixed;
      std::vector<Part> parts;
    };
    std::vector<OfStep> steps_;
  };

  explicit Cutter(std::vector<Step> steps) : steps_(std::move(steps)) {}

  State make_state() const;

  // Calls sink(word) for each word in order; views that live until `sink` returns. No word is empty.
  template <typename Sink>
  void cut(std::string_view text, State& state, const Sink& sink) const {
    cut_from(0, text, state, sink);
  }

 private:
  template <typename Sink>
  void cut_from(size_t index, std::string_view text, State& state, const Sink& sink) const {
    if (text.empty()) return;
    if (index == steps_.size()) {
      sink(text);
      return;
    }
    const Step& step = steps_[index];
    State::OfStep& mine = state.steps_[index];
    if (step.prefix_space && text.front() != ' ') {
      mine.prefixed.assign(1, ' ').append(text);
      text = mine.prefixed;
    }
    if (step.pattern == nullptr) {
      cut_from(index + 1, text, state, sink);
      return;
    }
    step.pattern->begin(mine.pattern.get(), text);
    if (step.behaviour != Behaviour::kIsolated && step.behaviour != Behaviour::kRemoved) {
      merge_parts(step, mine, text);
      for (const State::Part& part : mine.parts) {
        cut_from(index + 1, text.substr(part.begin, part.end - part.begin), state, sink);
      }
      return;
    }
    const bool keep_matches = step.behaviour == Behaviour::kIsolated || step.invert;
    const bool keep_gaps = step.behaviour == Behaviour::kIsolated || !step.invert;
    size_t at = 0;
    for (Match match; step.pattern->find(mine.pattern.get(), text, at, match); at = match.end) {
      if (keep_gaps) cut_from(index + 1, text.substr(at, match.begin - at), state, sink);
      if (keep_matches) cut_from(index + 1, text.substr(match.begin, match.end - match.begin), state, sink);
    }
    if (keep_gaps) cut_from(index + 1, text.substr(at), state, sink);
  }

  // The pieces of the three behaviours that look at neighbours, into mine.parts.
  static void merge_parts(const Step& step, State::OfStep& mine, std::string_view text);

  const std::vector<Step> steps_;
};

}  // namespace telar::tokenizer
