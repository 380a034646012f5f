// The running account of a job on stderr: a page redrawn in place on a terminal, a bounded number of plain lines
// elsewhere.
#pragma once

#include <optional>
#include <string>

#include "client/commands/context.h"
#include "client/commands/screen.h"
#include "client/output/job_history.h"

namespace telar::client {

class ProgressDisplay {
 public:
  ProgressDisplay(Context& context, bool quiet)
      : context_(context),
        quiet_(quiet),
        page_(context.terminal.live && !quiet),
        screen_(context.terminal),
        told_(context.clock.now()) {}

  void event(const v1::JobEvent& event);  // Plain: a line of its own, with its time.
  void progress(const v1::Job& job);      // As of now. The page: a few a second; plain: at most one in two seconds.
  void idle(const v1::Job& job);          // Nothing new came; time goes on all the same.
  void note(const std::string& text);     // Shown even when quiet.
  void end();                             // The terminal is as it was, with the last page above.

 private:
  bool due(Milliseconds interval);
  void draw(const v1::Job& job);

  Context& context_;
  const bool quiet_;
  const bool page_;
  Screen screen_;
  JobHistory history_;
  Clock::Steady told_;                  // When the job was told of.
  std::optional<Clock::Steady> shown_;  // When something was drawn last.
  uint64_t last_step_ = 0;
};

}  // namespace telar::client
