#include "client/commands/progress_display.h"

#include <ostream>

#include "client/output/format.h"
#include "client/output/progress.h"

namespace telar::client {
namespace {

constexpr Milliseconds kPageInterval{200};
constexpr Milliseconds kPlainInterval{2000};

}  // namespace

// Whether something was shown so long ago; if it was, counts from now.
bool ProgressDisplay::due(Milliseconds interval) {
  const auto now = context_.clock.now();
  if (shown_ && now - *shown_ < interval) return false;
  shown_ = now;
  return true;
}

void ProgressDisplay::event(const v1::JobEvent& event) {
  if (page_) return history_.add(event);
  const std::string line = event_line(event);
  if (quiet_ || line.empty()) return;
  context_.err() << time_text(event.time()) << "  " << line << "\n" << std::flush;
}

void ProgressDisplay::progress(const v1::Job& job) {
  if (quiet_) return;
  told_ = context_.clock.now();
  if (page_) {
    if (due(kPageInterval) || is_terminal(job.state())) draw(job);
    return;
  }
  if (job.progress().step() == 0 || job.progress().step() == last_step_ || !due(kPlainInterval)) return;
  last_step_ = job.progress().step();
  context_.err() << time_text(job.progress().step_time()) << "  " << progress_line(job) << "\n" << std::flush;
}

void ProgressDisplay::idle(const v1::Job& job) {
  if (page_ && due(kPageInterval)) draw(job);
}

void ProgressDisplay::note(const std::string& text) {
  if (page_) return history_.note(context_.now_seconds(), text);
  context_.err() << text << "\n" << std::flush;
}

void ProgressDisplay::end() { screen_.leave(); }

void ProgressDisplay::draw(const v1::Job& job) {
  const std::chrono::duration<double> age = context_.clock.now() - told_;
  screen_.draw(job_view(job, history_, context_.now_seconds(), age.count(), screen_.style()));
}

}  // namespace telar::client
