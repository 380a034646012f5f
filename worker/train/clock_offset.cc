#include "worker/train/clock_offset.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "common/call_deadline.h"
#include "common/errors.h"
#include "common/line.h"
#include "telar/v1/cluster.grpc.pb.h"

namespace telar::train {
namespace {

constexpr int kExchanges = 8;

class CoordinatorClock final : public ReferenceClock {
 public:
  explicit CoordinatorClock(const v1::RankPlan& plan) : line_(plan.rendezvous_address()) {
    request_.set_job(plan.job());
    request_.set_epoch(plan.epoch());
  }

  absl::StatusOr<Answer> ask(std::chrono::milliseconds timeout) override {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    const CallDeadline deadline(context, timeout);
    v1::ReadClockResponse response;
    const grpc::Status status = deadline.told(line_.stub()->ReadClock(&context, request_, &response));
    line_.renew_unless_answered(status);
    if (!status.ok()) return from_grpc(status);
    return Answer{response.clock(), response.received_seconds(), response.replied_seconds()};
  }

 private:
  v1::ReadClockRequest request_;
  Line<v1::Rendezvous> line_;
};

}  // namespace

double seconds_of(Clock::Steady time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

std::optional<ClockOffset> best_offset(std::span<const ClockExchange> exchanges) {
  std::optional<ClockOffset> best;
  for (const ClockExchange& one : exchanges) {
    const double way = std::max(0.0, (one.answered - one.asked) - (one.replied - one.received));
    if (best && way / 2 >= best->error) continue;
    const double offset = ((one.received - one.asked) + (one.replied - one.answered)) / 2;
    best = ClockOffset{.reference = "", .offset = offset, .error = way / 2};
  }
  return best;
}

std::optional<ClockOffset> measure_offset(ReferenceClock& reference, const Clock& clock,
                                          std::chrono::milliseconds longest) {
  const auto end = std::chrono::steady_clock::now() + longest;
  std::vector<ClockExchange> exchanges;
  std::string whose;
  for (int i = 0; i < kExchanges; ++i) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    ClockExchange one;
    one.asked = seconds_of(clock.now());
    const auto answer = reference.ask(left);
    one.answered = seconds_of(clock.now());
    if (!answer.ok()) break;
    if (!whose.empty() && whose != answer->reference) return std::nullopt;
    whose = answer->reference;
    one.received = answer->received;
    one.replied = answer->replied;
    exchanges.push_back(one);
  }
  std::optional<ClockOffset> best = best_offset(exchanges);
  if (best) best->reference = whose;
  return best;
}

std::unique_ptr<ReferenceClock> dial_reference_clock(const v1::RankPlan& plan) {
  if (plan.rendezvous_address().empty()) return nullptr;
  return std::make_unique<CoordinatorClock>(plan);
}

}  // namespace telar::train
