#include "client/commands/screen.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <mutex>
#include <ostream>
#include <string_view>
#include <utility>

namespace telar::client {
namespace {

// The other screen, the cursor, wrapping: xterm's private modes, which the terminals of today share.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr std::string_view kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H", kEraseLine = "\x1b[2K", kEraseBelow = "\x1b[J";
// A terminal that takes nothing more, as behind Ctrl-S, must not keep the program from ending.
constexpr std::chrono::milliseconds kPatience{200};

std::timed_mutex& mutex() {
  static std::timed_mutex& one = *new std::timed_mutex;  // The signal thread outlives main.
  return one;
}
bool entered = false;  // Guarded by mutex().

void set_keys(void (*action)(int)) {
  for (const int key : {SIGTSTP, SIGQUIT}) std::signal(key, action);
}

}  // namespace

ViewStyle Screen::style() const {
  const int width = terminal_.width == nullptr ? 80 : terminal_.width();
  const int height = terminal_.height == nullptr ? 24 : terminal_.height();
  return {.width = static_cast<size_t>(std::max(20, width)),
          .height = static_cast<size_t>(std::max(4, height)),
          .unicode = terminal_.unicode,
          .colour = terminal_.colour};
}

void Screen::draw(std::vector<std::string> lines) {
  if (shown_ && lines == lines_) return;
  std::string page;
  if (!shown_) page += kEnter;
  page += kHome;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) page += "\r\n";
    page.append(kEraseLine).append(lines[i]);
  }
  page += kEraseBelow;
  const std::lock_guard<std::timed_mutex> hold(mutex());
  if (!shown_) set_keys(SIG_IGN);
  shown_ = entered = true;
  terminal_.err << page << std::flush;
  lines_ = std::move(lines);
}

void Screen::leave() {
  if (!shown_) return;
  const std::lock_guard<std::timed_mutex> hold(mutex());
  terminal_.err << kLeave;
  for (const std::string& line : lines_) terminal_.err << line << "\n";
  terminal_.err << std::flush;
  set_keys(SIG_DFL);
  shown_ = entered = false;
}

void Screen::restore() {
  if (!mutex().try_lock_for(kPatience)) return;
  if (entered && write(STDERR_FILENO, kLeave.data(), kLeave.size()) < 0) return;  // There is no terminal any more.
  entered = false;
  // Kept: nothing more is drawn.
}

}  // namespace telar::client
