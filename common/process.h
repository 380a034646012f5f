// What every daemon's main() does in the same way: logging, signals, readiness.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>
#include <string>

namespace telar {

// One line an entry on stderr: time, level, program, text. level: trace | debug | info | warn | error.
void init_logging(const std::string& program, const std::string& level);

// Blocks TERM, INT, HUP and USR1 in this thread and those made after it, and ignores PIPE. Call first in main().
void block_signals();
// Returns the next blocked signal.
int wait_for_signal();
// The same, but none when `longest` passes without one.
std::optional<int> wait_for_signal(std::chrono::milliseconds longest);

// sd_notify: "READY=1", "STATUS=...", "STOPPING=1", "WATCHDOG=1". Does nothing outside systemd.
void notify_systemd(const std::string& state);

std::string random_id(int characters);  // Lower-case letters and digits, from the kernel.
std::string uuid4();
std::string version();  // "0.1.0+<commit>"

}  // namespace telar
