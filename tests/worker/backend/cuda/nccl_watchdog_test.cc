// The watchdog over communicators that are none: what it aborts when, and what waits return.
#include "worker/backend/cuda/nccl_watchdog.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace telar::backend::cuda {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FakeMember final : public NcclWatchdog::Member {
 public:
  FakeMember(NcclWatchdog& watchdog, int device, milliseconds timeout = std::chrono::minutes(10))
      : watchdog_(watchdog), device_(device), timeout_(timeout) {
    watchdog_.add(device_, *this);
  }
  ~FakeMember() override { watchdog_.remove(device_, *this); }

  void set_error(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    error_ = status;
  }
  std::string under_way;  // Set before anybody waits.

  // What a host does that waits for this communicator's work.
  absl::Status wait_until_aborted() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return aborts_ > 0; });
    return absl::OkStatus();
  }
  int aborts() {
    const std::lock_guard lock(mutex_);
    return aborts_;
  }
  // Its abort does not return before that of `other` has begun.
  void abort_needs(FakeMember& other) { needs_ = &other; }

 private:
  absl::Status look() override {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  std::string unfinished() override { return under_way; }
  milliseconds call_timeout() const override { return timeout_; }
  void abort() override {
    {
      const std::lock_guard lock(mutex_);
      ++aborts_;
    }
    changed_.notify_all();
    if (needs_ != nullptr) (void)needs_->wait_until_aborted();
  }

  NcclWatchdog& watchdog_;
  const int device_;
  const milliseconds timeout_;
  FakeMember* needs_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status error_;
  int aborts_ = 0;
};

TEST(NcclWatchdog, AnErrorOfOneMemberAbortsAllOfItsDeviceAndEndsTheWait) {
  NcclWatchdog watchdog(milliseconds(1));
  FakeMember a(watchdog, 0), b(watchdog, 0), elsewhere(watchdog, 1);
  // Neither can be aborted before the other.
  a.abort_needs(b);
  b.abort_needs(a);
  const absl::Status error = absl::UnavailableError("b: a peer is gone");
  std::thread later([&] { b.set_error(error); });
  EXPECT_EQ(watchdog.wait(0, [&] { return a.wait_until_aborted(); }), error);
  later.join();
  EXPECT_EQ(watchdog.failure(0), error);
  EXPECT_EQ(watchdog.failure(1), absl::OkStatus());
  EXPECT_EQ(watchdog.wait(1, [] { return absl::OkStatus(); }), absl::OkStatus());
  EXPECT_EQ(elsewhere.aborts(), 0);
}

TEST(NcclWatchdog, AHostThatWaitsTooLongIsAFailureThatNamesWhatIsUnderWay) {
  NcclWatchdog watchdog(milliseconds(1));
  FakeMember a(watchdog, 3), b(watchdog, 3, milliseconds(20)), c(watchdog, 3);
  a.under_way = "communicator 'tp', all_reduce, call 7";
  c.under_way = "communicator 'dp', 12 calls in graphs";
  const absl::Status status = watchdog.wait(3, [&] { return a.wait_until_aborted(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("device 3 has not finished what the host has waited for for 20 ms"),
                    HasSubstr("communicator 'tp', all_reduce, call 7; communicator 'dp', 12 calls in graphs")));
}

TEST(NcclWatchdog, TheFirstFailureStaysAndEachMemberIsAbortedOnce) {
  NcclWatchdog watchdog(milliseconds(1));
  FakeMember a(watchdog, 0), b(watchdog, 0);
  watchdog.fail(0, absl::InvalidArgumentError("first"));
  watchdog.fail(0, absl::InternalError("second"));
  b.set_error(absl::UnavailableError("third"));
  EXPECT_EQ(watchdog.wait(0, [] { return absl::InternalError("of the device"); }), absl::InvalidArgumentError("first"));
  EXPECT_EQ(a.aborts(), 1);
  EXPECT_EQ(b.aborts(), 1);
}

TEST(NcclWatchdog, AFailureGoesWithTheLastMemberOfItsDevice) {
  NcclWatchdog watchdog(milliseconds(1));
  {
    FakeMember a(watchdog, 0);
    {
      FakeMember b(watchdog, 0);
      watchdog.fail(0, absl::UnavailableError("gone"));
    }
    EXPECT_EQ(watchdog.failure(0), absl::UnavailableError("gone"));
  }
  EXPECT_EQ(watchdog.failure(0), absl::OkStatus());
  const FakeMember fresh(watchdog, 0);
  EXPECT_EQ(watchdog.failure(0), absl::OkStatus());
}

TEST(NcclWatchdog, WithoutMembersWaitsHaveNoDeadlineAndFailuresNoPlace) {
  NcclWatchdog watchdog(milliseconds(1));
  watchdog.fail(0, absl::UnavailableError("nobody"));
  EXPECT_EQ(watchdog.failure(0), absl::OkStatus());
  EXPECT_EQ(watchdog.wait(0, [] { return absl::InternalError("of the device"); }),
            absl::InternalError("of the device"));
}

}  // namespace
}  // namespace telar::backend::cuda
