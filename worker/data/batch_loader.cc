#include "worker/data/batch_loader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace telar::data {
namespace {

absl::Status check(const LoaderOptions& o) {
  if (o.dp_count == 0 || o.dp_index >= o.dp_count) {
    return absl::InvalidArgumentError(absl::StrCat("dp_index ", o.dp_index, ": must be below dp_count ", o.dp_count));
  }
  if (o.global_batch == 0 || o.global_batch % o.dp_count != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("global_batch ", o.global_batch, ": must be a positive multiple of dp_count ", o.dp_count));
  }
  if (o.micro_batches == 0 || o.global_batch / o.dp_count % o.micro_batches != 0) {
    return absl::InvalidArgumentError(absl::StrCat("micro_batches ", o.micro_batches,
                                                   ": must divide the rank's batch of ", o.global_batch / o.dp_count));
  }
  if (o.buffers < 2 || o.buffers > 4) {
    return absl::InvalidArgumentError(absl::StrCat("buffers ", o.buffers, ": must be in [2, 4]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchLoader>> BatchLoader::start(const Samples& samples, const LoaderOptions& options) {
  if (auto status = check(options); !status.ok()) return status;
  return std::unique_ptr<BatchLoader>(new BatchLoader(samples, options));
}

BatchLoader::BatchLoader(const Samples& samples, const LoaderOptions& options)
    : samples_(samples),
      options_(options),
      local_batch_(options.global_batch / options.dp_count),
      slots_(options.buffers) {
  const size_t tokens = size_t{local_batch_} * samples_.sequence_length();
  for (Slot& slot : slots_) {
    slot.inputs.resize(tokens);
    slot.targets.resize(tokens);
    if (options_.starts) slot.starts.resize(tokens);
  }
  thread_ = std::thread([this] { run(); });
}

BatchLoader::~BatchLoader() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

uint64_t BatchLoader::first_sample_of(uint64_t step) const {
  return options_.first_sample + step * options_.global_batch + uint64_t{options_.dp_index} * local_batch_;
}

bool BatchLoader::stopping() {
  std::lock_guard lock(mutex_);
  return stop_;
}

absl::Status BatchLoader::fill(uint64_t step, Slot& slot) {
  const size_t length = samples_.sequence_length();
  for (uint32_t row = 0; row < local_batch_; ++row) {
    if (stopping()) return absl::CancelledError("the loader is ending");
    const auto of_row = [&](std::vector<int32_t>& all) {
      return all.empty() ? std::span<int32_t>() : std::span(all).subspan(row * length, length);
    };
    auto status =
        samples_.read(first_sample_of(step) + row, {of_row(slot.inputs), of_row(slot.targets), of_row(slot.starts)});
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void BatchLoader::announce(uint64_t step) {
  uint64_t end = step + 1 + options_.ahead;
  if (options_.steps != 0) end = std::min(end, options_.steps);
  for (; announced_ < end; ++announced_) {
    for (uint32_t row = 0; row < local_batch_; ++row) samples_.will_need(first_sample_of(announced_) + row);
  }
}

void BatchLoader::run() {
  for (uint64_t step = 0;; ++step) {
    {
      std::unique_lock lock(mutex_);
      if (options_.steps != 0 && step == options_.steps) {
        ended_ = true;
        failure_ = absl::OutOfRangeError(absl::StrCat("all ", step, " batches were taken"));
      } else {
        changed_.wait(lock, [&] { return stop_ || step < released_ + slots_.size(); });
      }
      if (stop_ || ended_) break;
    }
    announce(step);
    absl::Status status = fill(step, slots_[step % slots_.size()]);
    std::lock_guard lock(mutex_);
    if (!status.ok()) {
      ended_ = true;
      failure_ = std::move(status);
      break;
    }
    ++produced_;
    changed_.notify_all();
  }
  changed_.notify_all();
}

absl::StatusOr<Batch> BatchLoader::next() {
  std::unique_lock lock(mutex_);
  const bool releases = released_ < taken_;
  if (releases) ++released_;
  std::chrono::duration<double> waited{};
  if (produced_ == taken_ && !ended_) {
    changed_.notify_all();
    const auto start = std::chrono::steady_clock::now();
    changed_.wait(lock, [&] { return produced_ > taken_ || ended_; });
    waited = std::chrono::steady_clock::now() - start;
  }
  if (produced_ == taken_) return failure_;
  const uint64_t step = taken_++;
  lock.unlock();
  // Last, so that the thread does not run in the caller's place while that has its batch already.
  if (releases) changed_.notify_all();
  const Slot& slot = slots_[step % slots_.size()];
  return Batch{first_sample_of(step), slot.inputs, slot.targets, slot.starts, waited.count()};
}

}  // namespace telar::data
