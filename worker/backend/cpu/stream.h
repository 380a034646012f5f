// Streams and events of the CPU backend: a stream is a thread with a queue.
//
// Nothing spins, and a stream in steady state allocates nothing. Work, records and waits happen in the order in which
// they were submitted; a failed stream drops its later work but still makes its records, so nobody waits for it
// forever.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "worker/backend/device.h"

namespace telar::backend::cpu {

// Counts its records: the n-th submitted record is generation n, and a wait is for the generation that was the latest
// when the wait was submitted. Generations complete in order, across streams too. All methods are thread-safe. Lives
// until the streams that record it or wait for it are synchronized.
class ThreadEvent final : public Event {
 public:
  uint64_t submit_record();  // The new generation.
  uint64_t latest() const;   // 0 before the first record: nothing to wait for.
  void complete(uint64_t generation);
  void wait(uint64_t generation);  // Blocks until it is complete.
  absl::Status synchronize() override;
  // When the latest submitted record was completed; waits for it. Without a record: the clock's epoch.
  std::chrono::steady_clock::time_point completed_at();

 private:
  mutable std::mutex mutex_;
  std::condition_variable completed_changed_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  std::chrono::steady_clock::time_point completed_at_;
};

class ThreadStream final : public Stream {
 public:
  // OpenMP regions of the stream's work use `threads` threads.
  ThreadStream(const std::string& name, int threads);
  ~ThreadStream() override;  // Finishes what was submitted.

  void submit(const std::function<absl::Status(Stream&)>& work) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void copy(void* to, const void* from, size_t bytes) override;
  absl::Status synchronize() override;

 private:
  enum class Kind : uint8_t { kWork, kRecord, kWait, kCopy };
  struct Item {
    Kind kind = Kind::kWork;
    const std::function<absl::Status(Stream&)>* work = nullptr;
    ThreadEvent* event = nullptr;  // kRecord, kWait.
    uint64_t generation = 0;
    void* to = nullptr;  // kCopy.
    const void* from = nullptr;
    size_t bytes = 0;
  };

  void push(const Item& item);
  void loop(const std::string& name, int threads);
  void execute(const Item& item);

  std::mutex mutex_;
  std::condition_variable pushed_;
  std::condition_variable idle_;
  std::vector<Item> queue_;   // Guarded by mutex_.
  bool busy_ = false;         // Guarded by mutex_: the thread holds items that it took from the queue.
  bool stop_ = false;         // Guarded by mutex_.
  absl::Status first_error_;  // Written by the thread while busy_, read when it is not.
  std::thread thread_;
};

}  // namespace telar::backend::cpu
