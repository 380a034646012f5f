// LD_PRELOAD=libfake_wall.so TELAR_FAKE_WALL=FILE: the wall clock of a process is what it is plus the nanoseconds in
// FILE (8 bytes, native), which may change at any time. As with a real one that is set, only the wall's is: steady
// clocks go on, and whoever sleeps until a time of the wall's clock sleeps shorter or longer for it.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kSlice = 20'000'000;  // How soon a sleeper sees that the clock was set.

using Syscall = long (*)(long, ...);

Syscall real_syscall() {
  static const auto kReal = reinterpret_cast<Syscall>(dlsym(RTLD_NEXT, "syscall"));
  return kReal;
}

int64_t ahead() {
  static const std::atomic<int64_t>* const kAhead = [] {
    const char* path = std::getenv("TELAR_FAKE_WALL");
    const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void* place = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (place == MAP_FAILED) {
      std::fprintf(stderr, "TELAR_FAKE_WALL: '%s' cannot be read\n", path == nullptr ? "" : path);
      std::_Exit(99);
    }
    close(file);
    return static_cast<const std::atomic<int64_t>*>(place);
  }();
  return kAhead->load(std::memory_order_relaxed);
}

int64_t real_time(clockid_t clock) {
  timespec now{};
  real_syscall()(SYS_clock_gettime, clock, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

bool is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

// A futex that is waited for until a time of the wall's clock: a little at a time.
long wait_until_wall(uint32_t* word, int op, uint32_t value, int64_t until, uint32_t bits) {
  for (;;) {
    const int64_t now = real_time(CLOCK_REALTIME);
    const int64_t end = std::min(until - ahead(), now + kSlice);
    const timespec slice{.tv_sec = end / kSecond, .tv_nsec = end % kSecond};
    if (end <= 0) {
      errno = ETIMEDOUT;
      return -1;
    }
    const long result = real_syscall()(SYS_futex, word, op, value, &slice, nullptr, bits);
    if (result == 0 || errno != ETIMEDOUT) return result;
    if (real_time(CLOCK_REALTIME) + ahead() >= until) {
      errno = ETIMEDOUT;
      return -1;
    }
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const long result = real_syscall()(SYS_clock_gettime, clock, time);
  if (result != 0 || !is_wall(clock)) return static_cast<int>(result);
  const int64_t now = time->tv_sec * kSecond + time->tv_nsec + ahead();
  time->tv_sec = now / kSecond;
  time->tv_nsec = now % kSecond;
  return 0;
}

int gettimeofday(timeval* __restrict time, void* __restrict) noexcept {
  const int64_t now = real_time(CLOCK_REALTIME) + ahead();
  time->tv_sec = now / kSecond;
  time->tv_usec = now % kSecond / 1'000;
  return 0;
}

time_t time(time_t* place) noexcept {
  const time_t now = (real_time(CLOCK_REALTIME) + ahead()) / kSecond;
  if (place != nullptr) *place = now;
  return now;
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_clock_gettime) {
    return clock_gettime(static_cast<clockid_t>(arguments[0]), reinterpret_cast<timespec*>(arguments[1]));
  }
  const int op = static_cast<int>(arguments[1]);
  const auto* until = reinterpret_cast<const timespec*>(arguments[3]);
  if (number == SYS_futex && (op & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && (op & FUTEX_CLOCK_REALTIME) != 0 &&
      until != nullptr) {
    return wait_until_wall(reinterpret_cast<uint32_t*>(arguments[0]), op, static_cast<uint32_t>(arguments[2]),
                           until->tv_sec * kSecond + until->tv_nsec, static_cast<uint32_t>(arguments[5]));
  }
  return real_syscall()(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

}  // extern "C"
