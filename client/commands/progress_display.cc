#include "client/commands/progress_display.h"

#include <ostream>

#include "client/output/format.h"
#include "client/output/progress.h"

namespace telar::client {
namespace {

constexpr Milliseconds kLiveInterval{100};
constexpr Milliseconds kPlainInterval{2000};

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
  if (line_.live()) {
    if (line_.due(kLiveInterval) || is_terminal(job.state())) line_.draw(dressed(job));
    return;
  }
  if (job.progress().step() == 0 || job.progress().step() == last_step_ || !line_.due(kPlainInterval)) return;
  last_step_ = job.progress().step();
  context_.err() << time_text(job.progress().step_time()) << "  " << progress_line(job) << "\n" << std::flush;
}

std::string ProgressDisplay::dressed(const v1::Job& job) const {
  const std::string line = line_.fit(progress_line(job));
  const std::string state = v1::Job::State_Name(job.state());
  if (!context_.terminal.colour || !line.starts_with(state)) return line;
  return colour_of(job.state()) + state + "\x1b[0m" + line.substr(state.size());
}

}  // namespace telar::client
