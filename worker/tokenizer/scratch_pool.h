// Working memory that calls borrow, one each, so that as much is made as ever was in use at once.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace telar::tokenizer {

template <typename Scratch>
class ScratchPool {
 public:
  // Hands its scratch back at its end. The pool outlives it.
  class Loan {
   public:
    Loan(ScratchPool& pool, std::unique_ptr<Scratch> scratch) : pool_(pool), scratch_(std::move(scratch)) {}
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(scratch_));
    }
    Scratch& operator*() const { return *scratch_; }
    Scratch* operator->() const { return scratch_.get(); }

   private:
    ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

  // `make` returns a new unique_ptr<Scratch>; called where none is free.
  template <typename Make>
  Loan borrow(const Make& make) {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Scratch> scratch = std::move(free_.back());
        free_.pop_back();
        return Loan(*this, std::move(scratch));
      }
    }
    return Loan(*this, make());
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;  // Guarded by mutex_.
};

}  // namespace telar::tokenizer
