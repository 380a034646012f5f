// What this rank tells of its calls to its peers while it runs, for the day when the gang hangs: who is where is then
// read from its flight file by others (worker/flight). Also how long the rank only waited for its peers.
//
// What is known, by the way that ops reach the device:
//   CPU                 each call when it begins (RUNNING) and when it has ended (DONE), and the waiting time.
//   GPU, op by op       each call when it is handed to the device (QUEUED); that it is DONE with its step.
//   GPU, by graph       the same: behind the launch of a graph its calls are written down in the order of the program.
// On a GPU a rank that is not in a call is therefore one whose host has not handed over that step, and there is no
// waiting time: the host sees none, and a kernel beside each call that took it would cost time itself.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/engine/executor.h"
#include "worker/flight/recorder.h"
#include "worker/flight/wait_clock.h"

namespace telar::train {

// Threads: the executors' threads tell it of ops, one thread calls the rest.
class FlightLog {
 public:
  // `path` empty: no file is kept; the same, with a warning in the log, where it cannot be made. `asynchronous`: the
  // device takes work and does it later.
  static std::unique_ptr<FlightLog> create(const std::string& path, const std::vector<backend::Group>& groups,
                                           bool asynchronous);
  FlightLog(std::unique_ptr<flight::Recorder> recorder, size_t groups, bool asynchronous);
  ~FlightLog();

  void set_activity(flight::Activity activity);
  flight::Activity activity() const { return activity_; }
  // Of training steps: run r of its executor is step `before` + r.
  engine::OpListener& steps(uint64_t before);
  engine::OpListener& others() { return other_; }

  // A step was submitted; the oldest one that was is over; all that was ever submitted is.
  void submitted();
  void finished_one();
  void finished_all();

  // Seconds in which the rank only waited for peers since the last call of this; nothing where nobody can tell.
  std::optional<double> waited();

 private:
  class Listener final : public engine::OpListener {
   public:
    explicit Listener(FlightLog* log) : log_(log) {}
    void before(const engine::Op& op, uint64_t run) override;
    void after(const engine::Op& op, bool good) override;
    void replayed(const engine::Program& program, uint64_t run) override;
    std::optional<uint64_t> step_before;  // Of steps; other programs have none.

   private:
    uint64_t step(uint64_t run) const { return step_before ? *step_before + run : 0; }
    FlightLog* const log_;
    const engine::Program* program_ = nullptr;  // Whose calls these are.
    std::vector<engine::CommCall> calls_;
  };
  void begin(const engine::CommCall& call, uint64_t step);

  const std::unique_ptr<flight::Recorder> recorder_;
  const bool asynchronous_;
  flight::Activity activity_ = flight::Activity::kUnknown;
  Listener steps_{this}, other_{this};
  std::vector<uint64_t> running_;  // By group: the number of its last call; its lane's own.
  std::deque<uint64_t> marks_;     // Of each step in flight: the number of the first call behind it.
  flight::WaitClock clock_;
  uint64_t waited_ = 0;  // By the last call of waited().
};

// What the rank is at while this lives; then what it was at before.
class Doing {
 public:
  Doing(FlightLog& log, flight::Activity activity) : log_(log), before_(log.activity()) { log_.set_activity(activity); }
  ~Doing() { log_.set_activity(before_); }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  FlightLog& log_;
  const flight::Activity before_;
};

}  // namespace telar::train
