#include "worker/tokenizer/cutter.h"

#include <algorithm>

namespace telar::tokenizer {

Cutter::State Cutter::make_state() const {
  State state;
  for (const Step& step : steps_) {
    state.steps_.emplace_back().pattern = step.pattern == nullptr ? nullptr : step.pattern->make_state();
  }
  return state;
}

void Cutter::merge_parts(const Step& step, State::OfStep& mine, std::string_view text) {
  std::vector<State::Part>& parts = mine.parts;
  parts.clear();
  size_t at = 0;
  for (Match match; step.pattern->find(mine.pattern.get(), text, at, match); at = match.end) {
    if (match.begin > at) parts.push_back({at, match.begin, step.invert});
    parts.push_back({match.begin, match.end, !step.invert});
  }
  if (at < text.size()) parts.push_back({at, text.size(), step.invert});

  // Whether `part` continues the piece of which `last` was the nearest part so far.
  const auto joins = [&step](const State::Part& last, const State::Part& part) {
    switch (step.behaviour) {
      case Behaviour::kContiguous:
        return last.match == part.match;
      case Behaviour::kMergedWithPrevious:
        return part.match && !last.match;
      default:
        return last.match && !part.match;
    }
  };
  size_t kept = 0;
  for (size_t next = 0; next < parts.size();) {
    State::Part piece = parts[next];
    State::Part last = piece;
    for (++next; next < parts.size() && joins(last, parts[next]); ++next) {
      last = parts[next];
      piece.end = last.end;
    }
    parts[kept++] = piece;
  }
  parts.resize(kept);
}

}  // namespace telar::tokenizer
