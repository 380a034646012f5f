#include "client/commands/progress_display.h"

#include <algorithm>
#include <ostream>

#include "client/output/format.h"
#include "client/output/progress.h"
#include "client/output/table.h"

namespace telar::client {
namespace {

constexpr Milliseconds kLiveInterval{100};
constexpr Milliseconds kPlainInterval{2000};
constexpr const char* kEraseLine = "\r\x1b[K";

// Of the select-graphic-rendition codes: red, green, yellow.
const char* colour_of(v1::Job::State state) {
  if (state == v1::Job::FAILED || state == v1::Job::FAILING) return "\x1b[31m";
  if (state == v1::Job::RUNNING || state == v1::Job::SUCCEEDED) return "\x1b[32m";
  return "\x1b[33m";
}

}  // namespace

void ProgressDisplay::event(const v1::JobEvent& event) {
  const std::string line = event_line(event);
  if (quiet_ || line.empty()) return;
  note(time_text(event.time()) + "  " + line);
}

void ProgressDisplay::progress(const v1::Job& job) {
  if (quiet_) return;
  const auto now = context_.clock.now();
  if (context_.terminal.live) {
    if (last_drawn_ && now - *last_drawn_ < kLiveInterval && !is_terminal(job.state())) return;
    live_text_ = dressed(job);
    context_.err() << kEraseLine << live_text_ << std::flush;
    live_shown_ = true;
    last_drawn_ = now;
    return;
  }
  if (job.progress().step() == 0 || job.progress().step() == last_step_) return;
  if (last_drawn_ && now - *last_drawn_ < kPlainInterval) return;
  last_step_ = job.progress().step();
  last_drawn_ = now;
  context_.err() << time_text(job.progress().step_time()) << "  " << progress_line(job) << "\n" << std::flush;
}

void ProgressDisplay::note(const std::string& text) {
  const bool redraw = live_shown_;
  clear();
  context_.err() << text << "\n";
  if (redraw) {
    context_.err() << live_text_;
    live_shown_ = true;
  }
  context_.err() << std::flush;
}

void ProgressDisplay::clear() {
  if (live_shown_) context_.err() << kEraseLine << std::flush;
  live_shown_ = false;
}

std::string ProgressDisplay::dressed(const v1::Job& job) const {
  // A line that wraps cannot be redrawn.
  const int width = context_.terminal.width == nullptr ? 80 : context_.terminal.width();
  const std::string line = cut(progress_line(job), static_cast<size_t>(std::max(20, width - 1)));
  const std::string state = v1::Job::State_Name(job.state());
  if (!context_.terminal.colour || !line.starts_with(state)) return line;
  return colour_of(job.state()) + state + "\x1b[0m" + line.substr(state.size());
}

}  // namespace telar::client
