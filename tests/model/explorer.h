// Every state that a protocol can reach, breadth first: the first violation found has the shortest way to it.
//
// A protocol has: State (plain bytes, compared and hashed as such), State start(), void next(const State&, emit), where
// emit(const Step&, const State&) is called once a successor, const char* broken(const State&) (null: nothing is), and
// bool over(const State&), true where nothing more is owed to anybody.
// Visited states are remembered by 128 bits of hash; a way back is replayed from the start.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

namespace telar::tests {

struct Step {
  const char* what;
  int node = -1, job = -1, epoch = -1;
  bool fault = false;  // Something breaks. All else also happens when nothing does.
};

inline std::string to_string(const Step& step) {
  std::string text = step.fault ? std::string("FAULT ") + step.what : step.what;
  if (step.job >= 0) text += ", job " + std::to_string(step.job);
  if (step.epoch >= 0) text += ", epoch " + std::to_string(step.epoch);
  if (step.node >= 0) text += ", node " + std::string(1, static_cast<char>('a' + step.node));
  return text;
}

struct Exploration {
  uint64_t states = 0;
  int depth = 0;                 // Of the breadth-first search.
  bool complete = false;         // All states were visited.
  std::string violation;         // Empty: none.
  std::vector<std::string> way;  // To the violation.
};

template <typename Protocol>
class Explorer {
 public:
  using State = typename Protocol::State;
  static_assert(std::has_unique_object_representations_v<State>, "a state is compared byte for byte");

  explicit Explorer(const Protocol& protocol) : protocol_(protocol) {}

  // At most about `most` states. Also finds states from which, if nothing breaks any more, nobody could ever get what
  // is owed to them.
  Exploration run(uint64_t most) {
    Exploration result;
    std::vector<State> level, below;
    std::vector<uint32_t> numbers, numbers_below;
    const State start = protocol_.start();
    find_or_add(start, 0, 0);
    level.push_back(start);
    numbers.push_back(0);
    while (!level.empty() && parents_.size() < most) {
      below.clear();
      numbers_below.clear();
      for (size_t at = 0; at < level.size(); ++at) {
        const uint32_t from = numbers[at];
        if (const char* what = protocol_.broken(level[at])) return failed(result, what, from);
        if (protocol_.over(level[at])) over_.push_back(from);
        uint16_t turn = 0;
        protocol_.next(level[at], [&](const Step& step, const State& state) {
          const auto [to, added] = find_or_add(state, from, turn++);
          if (!step.fault && to != from) edges_.push_back({to, from});
          if (!added) return;
          below.push_back(state);
          numbers_below.push_back(to);
        });
      }
      level.swap(below);
      numbers.swap(numbers_below);
      ++result.depth;
    }
    result.states = parents_.size();
    result.complete = level.empty();
    if (result.complete) look_for_dead_ends(result);
    return result;
  }

 private:
  struct Hash {
    uint64_t a = 0, b = 0;
    bool operator==(const Hash&) const = default;
  };
  struct Parent {
    uint32_t state;
    uint16_t turn;  // Which successor of it.
  };
  struct Edge {
    uint32_t to, from;
  };

  static Hash hash_of(const State& state) {
    Hash hash{0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f};
    const auto* bytes = reinterpret_cast<const unsigned char*>(&state);
    for (size_t at = 0; at < sizeof(State); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at, std::min<size_t>(8, sizeof(State) - at));
      hash.a = (hash.a ^ word) * 0xff51afd7ed558ccd;
      hash.a ^= hash.a >> 32;
      hash.b = (hash.b + word) * 0xc4ceb9fe1a85ec53;
      hash.b ^= hash.b >> 29;
    }
    return hash;
  }

  std::pair<uint32_t, bool> find_or_add(const State& state, uint32_t parent, uint16_t turn) {
    const Hash hash = hash_of(state);
    if (2 * (parents_.size() + 1) > table_.size()) grow();
    uint32_t* slot = slot_of(hash);
    if (*slot != kEmpty) return {*slot, false};
    *slot = static_cast<uint32_t>(parents_.size());
    parents_.push_back({parent, turn});
    hashes_.push_back(hash);
    return {*slot, true};
  }
  uint32_t* slot_of(const Hash& hash) {
    size_t at = hash.a & (table_.size() - 1);
    while (table_[at] != kEmpty && !(hashes_[table_[at]] == hash)) at = (at + 1) & (table_.size() - 1);
    return &table_[at];
  }
  void grow() {
    table_.assign(std::max<size_t>(1024, 2 * table_.size()), kEmpty);
    for (uint32_t state = 0; state < hashes_.size(); ++state) *slot_of(hashes_[state]) = state;
  }

  Exploration failed(Exploration& result, const std::string& what, uint32_t at) {
    result.states = parents_.size();
    result.violation = what;
    std::vector<uint16_t> turns;
    for (; at != 0; at = parents_[at].state) turns.push_back(parents_[at].turn);
    State state = protocol_.start();
    for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
      uint16_t number = 0;
      State chosen = state;
      protocol_.next(state, [&](const Step& step, const State& successor) {
        if (number++ != *turn) return;
        chosen = successor;
        result.way.push_back(to_string(step));
      });
      state = chosen;
    }
    return result;
  }

  // Backwards from the states where all is over, along steps that are no faults.
  void look_for_dead_ends(Exploration& result) {
    std::vector<uint32_t> first(parents_.size() + 1, 0);
    for (const Edge& edge : edges_) ++first[edge.to + 1];
    for (size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
    std::vector<uint32_t> sources(edges_.size()), next = first;
    for (const Edge& edge : edges_) sources[next[edge.to]++] = edge.from;
    std::vector<bool> good(parents_.size(), false);
    std::vector<uint32_t> stack = over_;
    for (const uint32_t state : stack) good[state] = true;
    while (!stack.empty()) {
      const uint32_t state = stack.back();
      stack.pop_back();
      for (uint32_t i = first[state]; i < first[state + 1]; ++i) {
        if (good[sources[i]]) continue;
        good[sources[i]] = true;
        stack.push_back(sources[i]);
      }
    }
    for (uint32_t state = 0; state < parents_.size(); ++state) {
      if (good[state]) continue;
      failed(result, "stuck: nothing breaks any more, and yet it can never be over", state);
      return;
    }
  }

  const Protocol& protocol_;
  static constexpr uint32_t kEmpty = UINT32_MAX;
  std::vector<uint32_t> table_;  // Of states by hash, open addressing.
  std::vector<Hash> hashes_;     // By state.
  std::vector<Parent> parents_;
  std::vector<Edge> edges_;  // Of steps that are no faults.
  std::vector<uint32_t> over_;
};

}  // namespace telar::tests
