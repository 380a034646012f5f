#include "server/jobs/goodput.h"

#include <algorithm>

#include "server/cluster/times.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {
namespace {

// Seconds in the present state that are not yet counted.
double unsettled(const JobRecord& record, Clock::Wall now) {
  const auto& since = record.has_settled_time() ? record.settled_time() : record.job().create_time();
  return std::max(0.0, std::chrono::duration<double>(now - cluster::to_wall(since)).count());
}

void add(v1::Goodput& goodput, const v1::Job& job, double seconds) {
  const uint64_t first = job.state() == v1::Job::STARTING ? 1 : 0;  // Epoch of a job that never had another.
  switch (job.state()) {
    case v1::Job::QUEUED:
    case v1::Job::STARTING:
      if (job.epoch() > first) {
        goodput.set_recovering_seconds(goodput.recovering_seconds() + seconds);
      } else if (job.state() == v1::Job::QUEUED) {
        goodput.set_queued_seconds(goodput.queued_seconds() + seconds);
      } else {
        goodput.set_starting_seconds(goodput.starting_seconds() + seconds);
      }
      break;
    case v1::Job::RUNNING:
      goodput.set_productive_seconds(goodput.productive_seconds() + seconds);
      break;
    case v1::Job::RESTARTING:
      goodput.set_recovering_seconds(goodput.recovering_seconds() + seconds);
      break;
    case v1::Job::CANCELLING:
    case v1::Job::FAILING:
      goodput.set_ending_seconds(goodput.ending_seconds() + seconds);
      break;
    default:
      break;  // It is over.
  }
}

// What was believed to be productive. Below 0 for a while where that time is not settled yet: the state still runs.
void take_back(v1::Goodput& goodput, double seconds) {
  goodput.set_productive_seconds(goodput.productive_seconds() - seconds);
}

}  // namespace

void settle_state(JobRecord& record, Clock::Wall now) {
  v1::Goodput& goodput = *record.mutable_job()->mutable_goodput();
  add(goodput, record.job(), unsettled(record, now));
  record.mutable_job()->set_run_seconds(run_seconds(goodput));
  *record.mutable_settled_time() = cluster::to_timestamp(now);
}

void note_start(JobRecord& record, uint64_t start_step) {
  if (record.started_epoch() == record.job().epoch()) return;
  record.set_started_epoch(record.job().epoch());
  const uint64_t reached = record.job().progress().step();
  if (reached <= start_step) return;
  v1::Goodput& goodput = *record.mutable_job()->mutable_goodput();
  const double lost = std::min(static_cast<double>(reached - start_step) * record.step_seconds(),
                               std::max(0.0, goodput.productive_seconds()));
  take_back(goodput, lost);
  goodput.set_lost_seconds(goodput.lost_seconds() + lost);
  goodput.set_lost_steps(goodput.lost_steps() + (reached - start_step));
}

void note_stall(JobRecord& record, double seconds) {
  v1::Goodput& goodput = *record.mutable_job()->mutable_goodput();
  take_back(goodput, seconds);
  goodput.set_stalled_seconds(goodput.stalled_seconds() + seconds);
}

double run_seconds(const v1::Goodput& goodput) {
  return goodput.productive_seconds() + goodput.lost_seconds() + goodput.stalled_seconds();
}

v1::Goodput goodput_of(const JobRecord& record, Clock::Wall now) {
  v1::Goodput goodput = record.job().goodput();
  if (!terminal(record.job().state())) add(goodput, record.job(), unsettled(record, now));
  return goodput;
}

}  // namespace telar::server::jobs
