// Hears of every op that an executor runs: for those who keep an account of calls to peers, or of time.
#pragma once

#include <cstdint>

#include "worker/engine/program.h"

namespace telar::engine {

// Be quick. `run`: 1 is the executor's first.
class OpListener {
 public:
  virtual ~OpListener() = default;
  // Around an op, on the thread that runs it; ops of different lanes overlap. Where a device takes work and does it
  // later, this is when the op is handed over, by the one thread that submits.
  virtual void before(const Op& op, uint64_t run) = 0;
  virtual void after(const Op& op, bool good) = 0;
  // A whole run was handed over as a graph: nothing is heard of its ops. By the thread that submits.
  virtual void replayed(const Program& program, uint64_t run) = 0;
};

}  // namespace telar::engine
