// Named places where tests let a process fail. Compiled in always, and inert unless the environment names one:
//
//   TELAR_FAULT="POINT:ACTION[:N]"    at the N-th time (default: the first) that this process comes by; several by ','
//     kill      SIGKILL to itself
//     stop      SIGSTOP to itself, until somebody sends SIGCONT
//     delayN    N ms
//     error     what is about to be done fails: UNAVAILABLE
//     enospc    the same, as on a full disk: RESOURCE_EXHAUSTED
//   TELAR_FAULT_DIR=DIR   a fault strikes once for all processes that share DIR, and leaves DIR/POINT when it does
//
// What cannot be read is said on stderr and ends the process: a test that does not strike would prove nothing.
// tests/faults/ has the points in use; docs/reliability.md lists them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace telar {

// OK where nothing is to happen, which costs one comparison. Any thread.
absl::Status fault_point(const char* point);
// For the points "NAME.begin" and "NAME.written" of a file of that name.
absl::Status fault_point(const std::string& name, const char* when);

}  // namespace telar
