// What can break. Each of these costs one of Limits::faults; so do giving up a save and losing its answer, which stand
// with the call.
#include <cstring>

#include "tests/model/protocol.h"

namespace telar::tests::model {

void Protocol::stop_all(State& state, int n, uint8_t end) {
  for (auto& of_job : state.worker[n].process) {
    for (Process& process : of_job) {
      if (!process.alive) continue;
      process = {};
      process.end = end;
    }
  }
}

void Protocol::faults(const State& state, const Emit& emit) const {
  State next = state;
  const auto pay = [&](const char* what, int n = -1, int j = -1, int e = -1) {
    --next.faults;
    emit({what, n, j, e, true}, next);
    next = state;
  };
  const auto daemon_dies = [&](Worker& worker) {  // Files and processes stay, and so does what is under way from it.
    Worker left{};
    std::memcpy(left.dir, worker.dir, sizeof(left.dir));
    std::memcpy(left.process, worker.process, sizeof(left.process));
    left.under_way = worker.under_way;
    left.late = worker.late;
    left.cut = worker.cut;
    worker = left;
  };
  if (state.up) {
    next.up = next.request = next.pending = 0;
    for (Member& member : next.member) member = {};
    for (Worker& worker : next.worker) {
      worker.connected = 0;
      worker.under_way = worker.late = {};
    }
    for (Files& files : next.files) std::memset(files.stray, 0, sizeof(files.stray));
    pay("the coordinator dies");
  }
  if (state.request) {
    next.request = 0;
    pay("a request is lost");
  }
  if (state.answered) {
    next.answered = 0;
    pay("an answer is lost");
  }
  for (int n = 0; n < kNodes; ++n) {
    const Worker& now = state.worker[n];
    if (now.up) {
      daemon_dies(next.worker[n]);
      pay("the daemon dies", n);
      daemon_dies(next.worker[n]);
      stop_all(next, n, kCrashed);
      pay("the machine starts anew", n);
    }
    if (now.connected) {
      next.worker[n].connected = 0;
      pay("the stream breaks", n);
    }
    if (limits_.honest_clocks && !now.cut) {
      next.worker[n].cut = 1;
      pay("the network is cut", n);
    }
    if (state.up && !limits_.honest_clocks && !state.member[n].lost) {
      next.member[n].lost = 1;
      pay("a lease runs out", n);
    }
    for (int j = 0; j < limits_.jobs; ++j) {
      for (int e = 1; e <= kEpochs; ++e) {
        const Process& process = now.process[j][e];
        if (!process.alive) continue;
        next.worker[n].process[j][e] = {};
        next.worker[n].process[j][e].end = kCrashed;
        pay("a process crashes", n, j, e);
      }
    }
  }
}

}  // namespace telar::tests::model
