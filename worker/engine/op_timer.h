// Takes the times of the ops of one run that it observes, each on its own lane, while the lanes run beside each other.
//
// An op that waits for others starts when its waits are over; any other when the op before it on its lane has ended,
// so that a device that is ahead of its host shows no gaps that a replayed graph would not have. Where the host is
// behind (RunTimes::issued is near RunTimes::seconds), the times of ops include waiting to be enqueued.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/executor.h"

namespace telar::engine {

struct OpTime {
  double start = 0;  // Seconds since the start of the run.
  double stop = 0;
};
struct RunTimes {
  double start = 0;         // By the timer's clock.
  double start_error = 0;   // Seconds that this may be off, either way.
  double seconds = 0;       // Until all lanes were done.
  double issued = 0;        // Seconds that the host took to enqueue the run.
  std::vector<OpTime> ops;  // By OpId.
};

// Observes one run at a time; what times() has given is free for the next. Outlives the run.
class OpTimer final : public RunObserver {
 public:
  using Now = std::function<double()>;  // Seconds by a clock that never jumps.
  // `plan` must outlive it. `now`: the host's clock; none: std::chrono::steady_clock's. All that it needs of the device
  // is made here.
  static absl::StatusOr<std::unique_ptr<OpTimer>> create(const Plan& plan, backend::Device& device, Now now = {});

  void begin(backend::Stream& origin) override;
  void before(OpId op, backend::Stream& lane) override;
  void after(OpId op, backend::Stream& lane) override;
  void end(backend::Stream& origin) override;

  // Waits for the run, which must have gone well.
  absl::StatusOr<RunTimes> times();

 private:
  OpTimer(const Plan& plan, backend::Device& device, Now now) : plan_(plan), device_(device), now_(std::move(now)) {}
  absl::Status find_start(RunTimes& times);

  using Event = std::unique_ptr<backend::Event>;
  const Plan& plan_;
  backend::Device& device_;
  const Now now_;
  Event begin_, end_, anchor_;
  std::vector<Event> starts_;  // By OpId; none for ops without waits.
  std::vector<Event> stops_;   // By OpId.
  double began_ = 0, issued_ = 0;
  std::unique_ptr<backend::Stream> clock_;  // Idle but for the anchor.
};

}  // namespace telar::engine
