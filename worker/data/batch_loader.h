// One rank's batches, read ahead on a thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/sampler.h"

namespace telar::data {

struct LoaderOptions {
  uint64_t first_sample = 0;  // Sample of the run that the first batch begins with; consumed_samples on resume.
  uint64_t steps = 0;         // Batches to give; 0: endless.
  uint32_t global_batch = 0;  // Samples a step over all ranks, G.
  uint32_t dp_index = 0;      // This rank's place d among dp_count = D data-parallel ranks; G is a multiple of D.
  uint32_t dp_count = 1;
  uint32_t micro_batches = 1;  // Divides G / D.
  uint32_t buffers = 3;        // Batches in memory, the one given out included: 2 to 4.
  uint32_t ahead = 8;          // Batches behind the one being read that the system is told of.
  bool starts = false;         // Where documents start, too.
};

// The view of one step, valid until the next call of next() or the loader's end.
struct Batch {
  uint64_t first_sample = 0;         // Of this rank's part.
  std::span<const int32_t> inputs;   // [G / D, T]; micro-batch m is rows [m, m + 1) * G / D / micro_batches.
  std::span<const int32_t> targets;  // [G / D, T]
  std::span<const int32_t> starts;   // [G / D, T], or none: see Row.
  double waited_seconds = 0;         // How long next() blocked for it.
};

// The k-th batch is the samples first_sample + [k*G, (k+1)*G) of the run; rank d gets the contiguous block that begins
// at d * (G / D). What a batch holds does not depend on timing. next() is for one thread.
//
// The thread reads up to `buffers` batches ahead; of some more it tells the system, so that rows all over a disk or a
// network file system are on their way at once instead of one after the other.
class BatchLoader {
 public:
  // `samples` must outlive the loader. INVALID_ARGUMENT names field, value and rule.
  static absl::StatusOr<std::unique_ptr<BatchLoader>> start(const Samples& samples, const LoaderOptions& options);
  // Ends the thread; waits at most for the one sample that it is reading.
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Blocks for the next batch. A read error comes in its turn, after the whole batches before it, and then at every
  // call. OUT_OF_RANGE after the last of `steps`.
  absl::StatusOr<Batch> next();

  // Rows of one micro-batch of `batch.inputs` or `batch.targets`.
  std::span<const int32_t> micro(std::span<const int32_t> rows, uint32_t index) const {
    const size_t size = rows.size() / options_.micro_batches;
    return rows.subspan(index * size, size);
  }

 private:
  struct Slot {
    std::vector<int32_t> inputs, targets, starts;
  };

  BatchLoader(const Samples& samples, const LoaderOptions& options);
  void run();
  void announce(uint64_t step);
  // CANCELLED when the loader is being destroyed.
  absl::Status fill(uint64_t step, Slot& slot);
  uint64_t first_sample_of(uint64_t step) const;
  bool stopping();

  const Samples& samples_;
  const LoaderOptions options_;
  const uint32_t local_batch_;
  uint64_t announced_ = 0;   // Batches that the system was told of; the thread's.
  std::vector<Slot> slots_;  // A slot belongs to the thread from release to production, else to the caller.

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. Counts of batches; released_ <= taken_ <= produced_ <= released_ + slots.
  uint64_t produced_ = 0;
  uint64_t taken_ = 0;
  uint64_t released_ = 0;
  bool stop_ = false;
  bool ended_ = false;  // Nothing more will be produced; failure_ says why.
  absl::Status failure_;

  std::thread thread_;  // Last: starts when all else is there.
};

}  // namespace telar::data
