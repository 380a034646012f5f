#include "worker/engine/memory_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace telar::engine {
namespace {

// Ends of each buffer's life, as list positions and as clocks.
class Lives {
 public:
  Lives(const Program& program, size_t lanes)
      : lanes_(lanes), first_(program.buffers().size(), kNoOp), last_(program.buffers().size(), 0) {
    for (OpId op = 0; op < program.ops().size(); ++op) {
      for (const Access& access : program.ops()[op].accesses) {
        if (first_[access.buffer] == kNoOp) first_[access.buffer] = op;
        last_[access.buffer] = op;
      }
    }
  }

  void fill_clocks(const Program& program, const HappensBefore& order) {
    const size_t buffers = first_.size();
    ends_.assign(buffers * lanes_, 0);
    starts_.assign(buffers * lanes_, std::numeric_limits<uint32_t>::max());
    for (OpId op = 0; op < program.ops().size(); ++op) {
      const uint32_t own = order.lane(op);
      for (const Access& access : program.ops()[op].accesses) {
        uint32_t& end = ends_[access.buffer * lanes_ + own];
        end = std::max(end, order.position(op));
        for (uint32_t lane = 0; lane < lanes_; ++lane) {
          const uint32_t seen = order.clock(op)[lane] - (lane == own ? 1 : 0);  // When it starts.
          uint32_t& start = starts_[access.buffer * lanes_ + lane];
          start = std::min(start, seen);
        }
      }
    }
  }

  bool used(BufferId buffer) const { return first_[buffer] != kNoOp; }
  OpId first(BufferId buffer) const { return first_[buffer]; }
  OpId last(BufferId buffer) const { return last_[buffer]; }

  // Of two buffers whose lives do not meet in list order, `a` being the earlier.
  bool ordered(BufferId a, BufferId b) const {
    const uint32_t* end = &ends_[a * lanes_];
    const uint32_t* start = &starts_[b * lanes_];
    for (size_t lane = 0; lane < lanes_; ++lane) {
      if (end[lane] > start[lane]) return false;
    }
    return true;
  }

 private:
  size_t lanes_;
  std::vector<OpId> first_, last_;       // kNoOp, 0: never touched.
  std::vector<uint32_t> ends_, starts_;  // buffers x lanes: last access on the lane; ops seen by all first accesses.
};

struct Placed {
  uint64_t begin = 0;
  uint64_t end = 0;
  BufferId buffer = 0;
  OpId first = 0;  // Of its life; here because the inner loop below asks for nothing else most of the time.
  OpId last = 0;
};

bool may_share(const Lives& lives, const Placed& a, const Placed& b) {
  if (a.last < b.first) return lives.ordered(a.buffer, b.buffer);
  if (b.last < a.first) return lives.ordered(b.buffer, a.buffer);
  return false;
}

// Lowest free offset for each buffer of `sequence` in turn; returns the end of the arena.
uint64_t place(const Program& program, const Lives& lives, const std::vector<BufferId>& sequence, uint64_t base,
               std::vector<uint64_t>& offsets) {
  std::vector<Placed> placed;  // Ascending by begin.
  placed.reserve(sequence.size());
  uint64_t arena_end = base;
  for (BufferId buffer : sequence) {
    const uint64_t bytes = align_up(program.buffers()[buffer].bytes);
    Placed entry{base, base + bytes, buffer, lives.first(buffer), lives.last(buffer)};
    for (const Placed& other : placed) {
      if (other.begin >= entry.end) break;
      if (other.end <= entry.begin || may_share(lives, other, entry)) continue;
      entry.begin = other.end;
      entry.end = entry.begin + bytes;
    }
    offsets[buffer] = entry.begin;
    arena_end = std::max(arena_end, entry.end);
    const auto position = std::upper_bound(placed.begin(), placed.end(), entry,
                                           [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
    placed.insert(position, entry);
  }
  return arena_end;
}

// The orders worth trying; ties go by id, so that a plan depends on nothing but the program.
std::array<std::vector<BufferId>, 3> sequences(const Program& program, const Lives& lives,
                                               std::vector<BufferId> buffers) {
  const auto sorted = [&](auto key) {
    std::vector<BufferId> sequence = buffers;
    std::stable_sort(sequence.begin(), sequence.end(), [&](BufferId a, BufferId b) { return key(a) > key(b); });
    return sequence;
  };
  return {sorted([&](BufferId buffer) { return program.buffers()[buffer].bytes; }),
          sorted([&](BufferId buffer) { return lives.last(buffer) - lives.first(buffer); }),
          sorted([&](BufferId buffer) { return ~lives.first(buffer); })};
}

}  // namespace

std::array<uint64_t, kMemoryClasses> least_arena_bytes(const Program& program) {
  const Lives lives(program, 0);
  std::vector<std::array<int64_t, kMemoryClasses>> change(program.ops().size() + 1);
  std::array<uint64_t, kMemoryClasses> persistent{};
  for (BufferId buffer = 0; buffer < program.buffers().size(); ++buffer) {
    const Buffer& description = program.buffers()[buffer];
    const auto bytes = static_cast<int64_t>(align_up(description.bytes));
    const auto memory_class = static_cast<size_t>(description.memory_class);
    if (description.lifetime == Lifetime::kPersistent) persistent[memory_class] += static_cast<uint64_t>(bytes);
    if (description.lifetime != Lifetime::kTransient || !lives.used(buffer)) continue;
    change[lives.first(buffer)][memory_class] += bytes;
    change[lives.last(buffer) + 1][memory_class] -= bytes;
  }
  std::array<uint64_t, kMemoryClasses> least = persistent;
  std::array<int64_t, kMemoryClasses> live{};
  for (const auto& step : change) {
    for (size_t i = 0; i < kMemoryClasses; ++i) {
      live[i] += step[i];
      least[i] = std::max(least[i], persistent[i] + static_cast<uint64_t>(live[i]));
    }
  }
  return least;
}

MemoryPlan plan_memory(const Program& program, const HappensBefore& order) {
  MemoryPlan plan;
  plan.offsets.assign(program.buffers().size(), 0);
  Lives lives(program, order.lanes());
  lives.fill_clocks(program, order);
  std::array<std::vector<BufferId>, kMemoryClasses> transients;
  for (BufferId buffer = 0; buffer < program.buffers().size(); ++buffer) {
    const Buffer& description = program.buffers()[buffer];
    const auto memory_class = static_cast<size_t>(description.memory_class);
    if (description.lifetime == Lifetime::kPersistent) {
      plan.offsets[buffer] = plan.arena_bytes[memory_class];
      plan.arena_bytes[memory_class] += align_up(description.bytes);
    } else if (description.lifetime == Lifetime::kTransient && lives.used(buffer)) {
      transients[memory_class].push_back(buffer);
    }
  }
  const std::array<uint64_t, kMemoryClasses> least = least_arena_bytes(program);
  std::vector<uint64_t> offsets(program.buffers().size());
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    const uint64_t base = plan.arena_bytes[i];
    uint64_t best = std::numeric_limits<uint64_t>::max();
    for (const std::vector<BufferId>& sequence : sequences(program, lives, transients[i])) {
      const uint64_t end = place(program, lives, sequence, base, offsets);
      if (end < best) {
        best = end;
        for (BufferId buffer : transients[i]) plan.offsets[buffer] = offsets[buffer];
      }
      if (best == least[i]) break;  // Nothing can be smaller.
    }
    plan.arena_bytes[i] = best;
  }
  return plan;
}

}  // namespace telar::engine
