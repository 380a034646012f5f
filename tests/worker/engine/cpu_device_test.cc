// worker/backend/cpu/device.cc and stream.cc: what the executors build on.
#include <gmock/gmock.h>
#include <omp.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "worker/backend/cpu/cpu.h"
#include "worker/backend/cpu/stream.h"

namespace telar::backend::cpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Work = std::function<absl::Status(Stream&)>;

// Work that succeeds.
Work work_of(std::function<void()> body) {
  return [body = std::move(body)](Stream&) {
    body();
    return absl::OkStatus();
  };
}

// A door that a test opens.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

class CpuDeviceTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = create_device({.threads = 3}, nullptr, nullptr);
  std::unique_ptr<Event> event_ = device_->create_event().value();  // Outlives the streams' use of it.
  std::unique_ptr<Stream> a_ = device_->create_stream("a", true).value();
  std::unique_ptr<Stream> b_ = device_->create_stream("b", false).value();
};

TEST(ThreadStreamTest, ACopyByWorkIsPartOfThatWork) {
  const auto device = create_device({}, nullptr, nullptr);
  const auto stream = device->create_stream("s", false).value();
  int from = 1, between = 0, to = 0;
  Gate gate;
  const Work hold = work_of([&] { gate.pass(); });
  const Work copy = [&](Stream& own) {
    own.copy(&between, &from, sizeof(int));
    return absl::OkStatus();
  };
  const Work look = work_of([&] { to = between; });
  stream->submit(hold);  // So that all three are queued when the copy is made.
  stream->submit(copy);
  stream->submit(look);
  gate.open();
  ASSERT_TRUE(stream->synchronize().ok());
  EXPECT_EQ(to, 1);
}

TEST_F(CpuDeviceTest, KnowsTheMachine) {
  EXPECT_NE(device_->info().model, "");
  EXPECT_GT(device_->info().memory_bytes, uint64_t{64} << 20);
  EXPECT_EQ(device_->info().peak_flops_bf16, 0);
  EXPECT_EQ(device_->info().peak_flops_f16, 0);
}

TEST_F(CpuDeviceTest, MemoryIsAlignedAndZeroed) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4097}, size_t{33} << 20}) {
    const std::unique_ptr<Memory> memory = device_->allocate(bytes).value();
    EXPECT_EQ(memory->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 256, 0u);
    EXPECT_TRUE(std::all_of(memory->data(), memory->data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_F(CpuDeviceTest, TooMuchMemoryIsAnErrorWithBothNumbers) {
  for (const size_t bytes : {size_t{1} << 50, SIZE_MAX - 4096}) {
    const absl::Status status = device_->allocate(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(bytes) + " bytes asked"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("available"));
  }
}

TEST_F(CpuDeviceTest, CopiesBothWays) {
  const std::unique_ptr<Memory> memory = device_->allocate(8).value();
  const int64_t in = 0x1234567890;
  int64_t out = 0;
  ASSERT_TRUE(device_->copy_to_device(&in, memory->data(), 8).ok());
  ASSERT_TRUE(device_->copy_to_host(memory->data(), &out, 8).ok());
  EXPECT_EQ(out, in);
}

TEST_F(CpuDeviceTest, HasNoCommunicatorsUnlessItWasGivenAFactory) {
  class NoStore final : public KeyValueStore {
    absl::Status put(const std::string&, const std::string&) override { return absl::OkStatus(); }
    absl::StatusOr<std::vector<std::string>> get(std::span<const std::string>, std::chrono::milliseconds) override {
      return absl::NotFoundError("none");
    }
  } store;
  const absl::Status status = device_->create_communicator(store, {.name = "dp0"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'dp0'"));
}

TEST_F(CpuDeviceTest, WorkRunsInOrderAndSynchronizeWaitsForIt) {
  std::vector<int> seen;
  std::vector<Work> work;
  for (int i = 0; i < 100; ++i) {
    work.emplace_back([&seen, i](Stream&) {
      seen.push_back(i);
      return absl::OkStatus();
    });
  }
  for (const Work& item : work) a_->submit(item);
  ASSERT_TRUE(a_->synchronize().ok());
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST_F(CpuDeviceTest, OnlyTheComputeStreamMayUseAllThreads) {
  int a = 0, b = 0;
  const Work on_a = work_of([&] { a = omp_get_max_threads(); });
  const Work on_b = work_of([&] { b = omp_get_max_threads(); });
  a_->submit(on_a);
  b_->submit(on_b);
  ASSERT_TRUE(a_->synchronize().ok());
  ASSERT_TRUE(b_->synchronize().ok());
  EXPECT_EQ(a, 3);
  EXPECT_EQ(b, 1);
}

TEST_F(CpuDeviceTest, AWaitForAnEventThatWasNeverRecordedIsNoWait) {
  a_->wait(*event_);
  EXPECT_TRUE(a_->synchronize().ok());
}

TEST_F(CpuDeviceTest, AWaitSeesTheLatestRecordSubmittedBeforeIt) {
  std::mutex mutex;
  std::vector<std::string> seen;
  const auto note = [&](const char* what) {
    return [&, what](Stream&) {
      const std::lock_guard lock(mutex);
      seen.push_back(what);
      return absl::OkStatus();
    };
  };
  Gate first, second;
  const Work pass_first = work_of([&] { first.pass(); });
  const Work pass_second = work_of([&] { second.pass(); });
  const Work a1 = note("a1"), b1 = note("b1"), a2 = note("a2"), b2 = note("b2");
  a_->submit(pass_first);
  a_->submit(a1);
  a_->record(*event_);
  b_->wait(*event_);  // Generation 1, though 2 is submitted before it is over.
  b_->submit(b1);
  a_->submit(pass_second);
  a_->submit(a2);
  a_->record(*event_);
  first.open();
  ASSERT_TRUE(b_->synchronize().ok());  // Would hang if b waited for generation 2: the second gate is shut.
  b_->wait(*event_);
  b_->submit(b2);
  second.open();
  ASSERT_TRUE(a_->synchronize().ok());
  ASSERT_TRUE(b_->synchronize().ok());
  EXPECT_THAT(seen, ElementsAre("a1", "b1", "a2", "b2"));
}

TEST_F(CpuDeviceTest, AnOldRecordDoesNotReleaseAReplayedWait) {
  int value = 0;
  const Work write = work_of([&] { ++value; });
  int seen = 0;
  const Work look = work_of([&] { seen = value; });
  const std::unique_ptr<Event> back = device_->create_event().value();
  for (int step = 1; step <= 1000; ++step) {
    a_->wait(*back);
    a_->submit(write);
    a_->record(*event_);
    b_->wait(*event_);
    b_->submit(look);
    b_->record(*back);
    if (step % 100 != 0) continue;
    ASSERT_TRUE(a_->synchronize().ok());
    ASSERT_TRUE(b_->synchronize().ok());
    ASSERT_EQ(seen, step);
  }
}

TEST_F(CpuDeviceTest, RecordsOfOneEventOnTwoStreamsCompleteInTheOrderOfTheirSubmission) {
  Gate gate;
  int value = 0;
  const Work slow = work_of([&] {
    gate.pass();
    value = 1;
  });
  int seen = -1;
  const Work look = work_of([&] { seen = value; });
  const std::unique_ptr<Stream> c = device_->create_stream("c", false).value();
  a_->submit(slow);
  a_->record(*event_);
  c->wait(*event_);
  c->submit(look);
  b_->record(*event_);  // At once possible, but must not release c.
  gate.open();
  ASSERT_TRUE(c->synchronize().ok());
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(b_->synchronize().ok());
}

TEST_F(CpuDeviceTest, CopiesHappenInTheStreamsOrder) {
  const std::unique_ptr<Memory> host = device_->allocate_pinned(8).value();
  const std::unique_ptr<Memory> memory = device_->allocate(8).value();
  int64_t seen[2] = {};
  Gate gate;
  const Work wait = work_of([&] { gate.pass(); });
  const Work add = work_of([&] { ++*reinterpret_cast<int64_t*>(memory->data()); });
  a_->submit(wait);
  a_->copy(memory->data(), host->data(), 8);
  a_->copy(&seen[0], memory->data(), 8);
  a_->submit(add);
  a_->copy(&seen[1], memory->data(), 8);
  a_->copy(nullptr, nullptr, 0);
  *reinterpret_cast<int64_t*>(host->data()) = 41;  // Nothing was read yet.
  gate.open();
  ASSERT_TRUE(a_->synchronize().ok());
  EXPECT_THAT(seen, ElementsAre(41, 42));
}

TEST_F(CpuDeviceTest, AnEventCanBeWaitedForByTheHost) {
  ASSERT_TRUE(event_->synchronize().ok());  // Without a record there is nothing to wait for.
  int value = 0;
  Gate gate;
  const Work write = work_of([&] { value = 1; });
  const Work block = work_of([&] { gate.pass(); });
  a_->submit(write);
  a_->record(*event_);
  a_->submit(block);
  ASSERT_TRUE(event_->synchronize().ok());  // Would hang if it waited for the stream.
  EXPECT_EQ(value, 1);
  gate.open();
  EXPECT_TRUE(a_->synchronize().ok());
}

TEST_F(CpuDeviceTest, HasNoGraphs) {
  const absl::Status status = device_->capture(*a_, [] { return absl::OkStatus(); }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
}

TEST_F(CpuDeviceTest, TheFirstErrorLatchesAndRecordsStillHappen) {
  int ran = 0;
  const Work fail = [&](Stream&) { return absl::AbortedError("first"); };
  const Work run = [&](Stream&) {
    ++ran;
    return absl::AbortedError("second");
  };
  a_->submit(fail);
  a_->submit(run);
  a_->record(*event_);
  b_->wait(*event_);
  EXPECT_TRUE(b_->synchronize().ok());
  EXPECT_EQ(a_->synchronize(), absl::AbortedError("first"));
  a_->submit(run);
  EXPECT_EQ(a_->synchronize(), absl::AbortedError("first"));
  EXPECT_EQ(ran, 0);
}

TEST_F(CpuDeviceTest, DestructionFinishesWhatWasSubmitted) {
  int ran = 0;
  const Work run = work_of([&] { ++ran; });
  for (int i = 0; i < 20; ++i) a_->submit(run);
  a_.reset();
  EXPECT_EQ(ran, 20);
}

}  // namespace
}  // namespace telar::backend::cpu
