#include "common/call_deadline.h"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace telar {
namespace {

using Steady = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kSlack(250);  // gRPC's own deadline comes first, unless it sleeps.

}  // namespace

// The deadlines of all calls under way in this process, and the thread that waits for the next one.
class CallDeadline::Watch {
 public:
  static Watch& instance() {
    static Watch* const kWatch = new Watch;  // Never destroyed: its thread may be anywhere when the program ends.
    return *kWatch;
  }

  void add(CallDeadline* one) {
    const std::lock_guard lock(mutex_);
    const auto place = under_way_.emplace(one->end_, one).first;
    if (place == under_way_.begin()) wake_.notify_one();
  }
  void remove(CallDeadline* one) {
    const std::lock_guard lock(mutex_);
    under_way_.erase({one->end_, one});
  }

 private:
  Watch() {
    sigset_t all, before;  // Signals are the program's own threads'.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  [[noreturn]] void run() {
    for (std::unique_lock lock(mutex_);;) {
      if (under_way_.empty()) {
        wake_.wait(lock);
      } else if (const auto [end, one] = *under_way_.begin(); Steady::now() < end) {
        wake_.wait_until(lock, end);
      } else {
        one->passed_ = true;
        one->context_.TryCancel();  // Under the lock: then it is still there.
        under_way_.erase(under_way_.begin());
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::set<std::pair<Steady::time_point, CallDeadline*>> under_way_;  // Guarded by mutex_.
};

CallDeadline::CallDeadline(grpc::ClientContext& context, Steady::duration longest)
    : context_(context), end_(Steady::now() + longest + kSlack) {
  context.set_deadline(std::chrono::system_clock::now() + longest);
  Watch::instance().add(this);
}

CallDeadline::~CallDeadline() { Watch::instance().remove(this); }

grpc::Status CallDeadline::told(const grpc::Status& status) const {
  if (!passed_ || status.error_code() != grpc::StatusCode::CANCELLED) return status;
  return {grpc::StatusCode::DEADLINE_EXCEEDED, "no answer in time"};
}

}  // namespace telar
