// Measures in how much of its time a rank did nothing but wait for its peers: some call to them is under way, and
// nothing else runs. Lock-free; for devices whose ops run on threads of the host.
#pragma once

#include <atomic>
#include <cstdint>

namespace telar::flight {

class WaitClock {
 public:
  // Times are ns, of one clock for all.
  explicit WaitClock(uint64_t now) : word_(now & kTime) {}

  // Of threads that are in a call to peers, or in other work. `now()` tells the time, and is asked only where it
  // matters: work while there is no call, which most is, changes nothing about waiting.
  template <typename Now>
  void enter_call(const Now& now) {
    move(now, kCall);
  }
  template <typename Now>
  void leave_call(const Now& now) {
    move(now, -kCall);
  }
  template <typename Now>
  void enter_work(const Now& now) {
    move(now, kWork);
  }
  template <typename Now>
  void leave_work(const Now& now) {
    move(now, -kWork);
  }

  // Nanoseconds of waiting so far, with what is under way.
  uint64_t waited(uint64_t now) const {
    const uint64_t word = word_.load(std::memory_order_acquire);
    return total_.load(std::memory_order_acquire) + (waits(word) ? since(word, now) : 0);
  }

 private:
  // One word: calls under way (8 bits), other work under way (8), and since when this is so (48 bits of ns, which go
  // round in three days; nothing lasts that long). While there is no call the time stays that of the last one.
  static constexpr uint64_t kTime = (uint64_t{1} << 48) - 1;
  static constexpr int64_t kWork = int64_t{1} << 48;
  static constexpr int64_t kCall = int64_t{1} << 56;
  static bool calls(uint64_t word) { return (word >> 56) != 0; }
  static bool waits(uint64_t word) { return calls(word) && ((word >> 48) & 0xff) == 0; }
  static uint64_t since(uint64_t word, uint64_t now) {
    const uint64_t passed = (now - word) & kTime;
    return passed > kTime / 2 ? 0 : passed;  // Another thread took its time before us, and was sooner to tell.
  }

  template <typename Now>
  void move(const Now& now, int64_t change) {
    uint64_t seen = word_.load(std::memory_order_relaxed), next = 0, passed = 0;
    do {
      const bool matters = calls(seen) || change == kCall;
      passed = matters ? since(seen, now()) : 0;
      next = ((seen & ~kTime) + static_cast<uint64_t>(change)) | ((seen + passed) & kTime);
    } while (!word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_relaxed));
    if (passed > 0 && waits(seen)) total_.fetch_add(passed, std::memory_order_release);
  }

  std::atomic<uint64_t> word_;
  std::atomic<uint64_t> total_{0};
};

}  // namespace telar::flight
