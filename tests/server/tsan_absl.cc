// Tells ThreadSanitizer what the locks of the Abseil library order: the library is not instrumented, so every use of
// one would look like a race. Part of test programs that run gRPC, in thread builds only.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"

namespace {

template <typename Result, typename... Arguments>
Result call_next(const char* symbol, Arguments... arguments) {
  return reinterpret_cast<Result (*)(Arguments...)>(dlsym(RTLD_NEXT, symbol))(arguments...);
}

struct TwoRegisters {  // How absl::Duration and absl::Time are passed.
  long first;
  long second;
};

}  // namespace

#define TELAR_LOCK(symbol)           \
  extern "C" void symbol(void* mu) { \
    call_next<void>(#symbol, mu);    \
    __tsan_acquire(mu);              \
  }
#define TELAR_UNLOCK(symbol)         \
  extern "C" void symbol(void* mu) { \
    __tsan_release(mu);              \
    call_next<void>(#symbol, mu);    \
  }
#define TELAR_TRY(symbol)                            \
  extern "C" bool symbol(void* mu) {                 \
    const bool taken = call_next<bool>(#symbol, mu); \
    if (taken) __tsan_acquire(mu);                   \
    return taken;                                    \
  }
#define TELAR_WAIT(symbol)                                         \
  extern "C" bool symbol(void* cv, void* mu, TwoRegisters until) { \
    __tsan_release(mu);                                            \
    const bool timeout = call_next<bool>(#symbol, cv, mu, until);  \
    __tsan_acquire(mu);                                            \
    return timeout;                                                \
  }

TELAR_LOCK(_ZN4absl7debian35Mutex4LockEv)
TELAR_LOCK(_ZN4absl7debian35Mutex10ReaderLockEv)
TELAR_UNLOCK(_ZN4absl7debian35Mutex6UnlockEv)
TELAR_UNLOCK(_ZN4absl7debian35Mutex12ReaderUnlockEv)
TELAR_TRY(_ZN4absl7debian35Mutex7TryLockEv)
TELAR_TRY(_ZN4absl7debian35Mutex13ReaderTryLockEv)
TELAR_WAIT(_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE)
TELAR_WAIT(_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE)

extern "C" void _ZN4absl7debian37CondVar4WaitEPNS0_5MutexE(void* cv, void* mu) {
  __tsan_release(mu);
  call_next<void>("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE", cv, mu);
  __tsan_acquire(mu);
}

static const bool kNoCycles = (absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore), true);
