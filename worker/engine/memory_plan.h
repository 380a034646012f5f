// Where each buffer lives: an offset into the arena of its memory class.
//
// Two transients may share bytes only if every access of one happens before every access of the other, in the order
// that lanes and events give; no event is added to make a reuse possible. Offsets are found greedily: buffers in some
// order (largest first, and as alternatives longest-lived first and first-used first; the smallest arena wins), each at
// the lowest offset where it meets no buffer that it may not share with. Persistent buffers come first in each arena.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "worker/engine/lanes.h"

namespace telar::engine {

inline constexpr uint64_t kBufferAlignment = 256;
constexpr uint64_t align_up(uint64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

struct MemoryPlan {
  std::vector<uint64_t> offsets;  // By BufferId; 0 for externals and for transients that no op touches.
  std::array<uint64_t, kMemoryClasses> arena_bytes{};
};

MemoryPlan plan_memory(const Program& program, const HappensBefore& order);

// No plan can need less: the persistent bytes of each class, and the most transient bytes alive at one op if the list
// ran one after another. Buffers count with their alignment.
std::array<uint64_t, kMemoryClasses> least_arena_bytes(const Program& program);

}  // namespace telar::engine
