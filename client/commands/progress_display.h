// The running account of a job on stderr: one line redrawn on a terminal, a bounded number of plain lines elsewhere.
#pragma once

#include <string>

#include "client/commands/context.h"
#include "client/commands/live_line.h"

namespace telar::client {

class ProgressDisplay {
 public:
  ProgressDisplay(Context& context, bool quiet) : context_(context), quiet_(quiet), line_(context) {}

  void event(const v1::JobEvent& event);  // A line of its own, with its time.
  void progress(const v1::Job& job);      // On a terminal at most ten a second; else at most one in two seconds.
  void note(const std::string& text) { line_.note(text); }  // Shown even when quiet.
  void clear() { line_.clear(); }                           // Takes the live line away.

 private:
  std::string dressed(const v1::Job& job) const;

  Context& context_;
  const bool quiet_;
  LiveLine line_;
  uint64_t last_step_ = 0;
};

}  // namespace telar::client
