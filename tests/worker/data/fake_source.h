// Token sources without files.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/data/section.h"
#include "worker/data/token_source.h"

namespace telar::data {

// Documents that end at the given positions.
class FakeDocuments : public Documents {
 public:
  explicit FakeDocuments(std::vector<uint64_t> ends) : ends_(std::move(ends)) {}
  uint64_t count() const override { return ends_.size(); }
  uint64_t end(uint64_t index) const override { return ends_[index]; }

 private:
  std::vector<uint64_t> ends_;
};

// Token p has the id p mod 2^31. Reads that touch `fail_at` fail.
class CountingSource : public TokenSource {
 public:
  explicit CountingSource(uint64_t size, uint64_t fail_at = UINT64_MAX) : size_(size), fail_at_(fail_at) {}
  uint64_t size() const override { return size_; }
  absl::Status read(uint64_t first, std::span<int32_t> out) const override {
    if (first + out.size() > size_) return absl::OutOfRangeError("beyond the end");
    if (fail_at_ >= first && fail_at_ < first + out.size()) return absl::DataLossError("planted");
    for (size_t at = 0; at < out.size(); ++at) out[at] = static_cast<int32_t>((first + at) & 0x7fffffff);
    return absl::OkStatus();
  }
  absl::Status check_vocab(int64_t) const override { return absl::OkStatus(); }

 private:
  absl::StatusOr<std::unique_ptr<Documents>> do_documents(int32_t, const IndexCache&) const override {
    return absl::FailedPreconditionError("a count has no documents");
  }

  uint64_t size_;
  uint64_t fail_at_;
};

// Tokens as given.
class ListSource : public CountingSource {
 public:
  explicit ListSource(std::vector<int32_t> tokens) : CountingSource(tokens.size()), tokens_(std::move(tokens)) {}
  absl::Status read(uint64_t first, std::span<int32_t> out) const override {
    if (first + out.size() > tokens_.size()) return absl::OutOfRangeError("beyond the end");
    std::copy_n(tokens_.begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
    return absl::OkStatus();
  }

 private:
  std::vector<int32_t> tokens_;
};

inline Section section_of(const TokenSource& source, TokenRange range, const Documents* documents = nullptr) {
  return {source, documents, {range}};
}

// Reads wait until the test lets them through.
class GatedSource : public CountingSource {
 public:
  using CountingSource::CountingSource;
  absl::Status read(uint64_t first, std::span<int32_t> out) const override {
    {
      std::unique_lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return allowed_ > 0; });
      --allowed_;
    }
    return CountingSource::read(first, out);
  }
  void allow(int64_t reads) {
    std::lock_guard lock(mutex_);
    allowed_ += reads;
    changed_.notify_all();
  }
  // Blocks until this many reads were begun.
  void await_begun(int64_t reads) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= reads; });
  }
  int64_t begun() const {
    std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int64_t waiting_ = 0;
  mutable int64_t allowed_ = 0;
};

}  // namespace telar::data
