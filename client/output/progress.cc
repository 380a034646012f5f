#include "client/output/progress.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/output/format.h"

namespace telar::client {
namespace {

constexpr double kWorthTelling = 0.1;  // Seconds that a save held training up.

// Of one that is safe, or will never be.
std::string checkpoint_line(const v1::CheckpointReport& checkpoint) {
  if (checkpoint.state() == v1::CheckpointReport::STAGED) return "";
  const std::string what = absl::StrCat("checkpoint at step ", checkpoint.step());
  if (checkpoint.state() == v1::CheckpointReport::FAILED) {
    return absl::StrCat(what, " FAILED: ", one_line(checkpoint.message()));
  }
  std::string line = absl::StrCat(what, ": ", one_line(checkpoint.path()), " (", bytes(checkpoint.bytes()), ", ",
                                  duration(checkpoint.seconds()));
  if (checkpoint.stall_seconds() >= kWorthTelling) {
    absl::StrAppend(&line, ", training waited ", duration(checkpoint.stall_seconds()));
  }
  return line + ")";
}

std::string report_line(const v1::RankReport& report) {
  const v1::RankEvent& event = report.event();
  switch (event.kind_case()) {
    case v1::RankEvent::kStarted: {
      if (event.started().passed_over().empty()) return "";  // Nothing that the change of state does not tell.
      std::string line = "resumed from " + one_line(event.started().resumed_from());
      for (const std::string& one : event.started().passed_over()) {
        absl::StrAppend(&line, "; passed over ", one_line(one));
      }
      return line;
    }
    case v1::RankEvent::kEval:
      return absl::StrCat("eval at step ", event.eval().step(), ": loss ", loss(event.eval().loss()),
                          source_losses(event.eval().sources()));
    case v1::RankEvent::kCheckpoint:
      return checkpoint_line(event.checkpoint());
    case v1::RankEvent::kFailure:
      return absl::StrCat("rank ", report.rank(), " failed (",
                          absl::AsciiStrToLower(v1::FailureClass_Name(event.failure().failure_class())),
                          "): ", one_line(event.failure().message()));
    case v1::RankEvent::kLogLost:
      return absl::StrCat("rank ", report.rank(), ": ", event.log_lost().bytes(),
                          " bytes of its log found no room on its node's disk");
    default:
      return "";
  }
}

}  // namespace

std::string progress_line(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  std::string line = v1::Job::State_Name(job.state());
  if (progress.step() == 0) {
    if (!job.message().empty()) absl::StrAppend(&line, "  ", one_line(job.message()));
    return line;
  }
  absl::StrAppend(&line, "  ", progress.step(), "/", progress.total_steps(), "  loss ", loss(progress.loss()),
                  "  tokens/s ", count(progress.tokens_per_second()), "  MFU ", mfu(progress));
  if (progress.eta_seconds() > 0) absl::StrAppend(&line, "  ETA ", duration(progress.eta_seconds()));
  return line;
}

std::string event_line(const v1::JobEvent& event) {
  if (event.has_rank_report()) return report_line(event.rank_report());
  if (!event.has_state_change()) return "";
  const v1::StateChange& change = event.state_change();
  std::string line = v1::Job::State_Name(change.to());
  if (change.from() != v1::Job::STATE_UNSPECIFIED) {
    line = absl::StrCat(v1::Job::State_Name(change.from()), " -> ", line);
  }
  if (!change.reason().empty()) absl::StrAppend(&line, ": ", one_line(change.reason()));
  return change.epoch() > 1 ? absl::StrCat(line, " (epoch ", change.epoch(), ")") : line;
}

}  // namespace telar::client
