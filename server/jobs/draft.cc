#include "server/jobs/draft.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/cluster/times.h"
#include "server/jobs/goodput.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {

using cluster::to_timestamp;

Draft::Draft(JobRecord record, Clock::Wall now, Clock::Wall moment)
    : record_(std::move(record)), now_(now), moment_(moment) {
  if (record_.step_stride() == 0) record_.set_step_stride(1);
}

void Draft::add_event(v1::JobEvent event, uint64_t step) {
  record_.set_last_sequence(record_.last_sequence() + 1);
  event.set_sequence(record_.last_sequence());
  *event.mutable_time() = to_timestamp(now_);
  batch_.events.push_back({event.sequence(), step, event.SerializeAsString()});
  changed_ = true;
}

void Draft::transition(v1::Job::State to, const std::string& reason) {
  if (!legal(job().state(), to)) {
    problem_ = absl::InternalError(absl::StrCat(job().name(), ": no transition from ",
                                                v1::Job::State_Name(job().state()), " to ", v1::Job::State_Name(to)));
    return;
  }
  v1::JobEvent event;
  v1::StateChange* change = event.mutable_state_change();
  change->set_from(job().state());
  change->set_to(to);
  change->set_reason(reason);
  change->set_epoch(job().epoch());
  settle_state(record_, moment_);
  job().set_state(to);
  job().set_message(reason);
  if (to == v1::Job::QUEUED) *record_.mutable_queue_time() = to_timestamp(moment_);
  if (to == v1::Job::RUNNING && !job().has_start_time()) *job().mutable_start_time() = to_timestamp(now_);
  if (ending(to) && !record_.has_stop_time()) *record_.mutable_stop_time() = to_timestamp(moment_);
  if (terminal(to)) *job().mutable_end_time() = to_timestamp(now_);
  add_event(std::move(event), 0);
}

// The newest step event stays whatever its step; with a newer one it has to earn its place.
void Draft::thin_before(uint64_t step) {
  if (record_.newest_step() != 0 && record_.newest_step() % record_.step_stride() != 0) {
    const uint64_t sequence = record_.newest_step_sequence();
    const size_t before = batch_.events.size();
    std::erase_if(batch_.events, [sequence](const store::EventRow& row) { return row.sequence == sequence; });
    if (batch_.events.size() == before) batch_.erase_events.push_back(sequence);
    record_.set_step_rows(record_.step_rows() - 1);
  }
  record_.set_step_rows(record_.step_rows() + 1);
  if (record_.step_rows() > kMostStepEvents) {
    const uint64_t stride = record_.step_stride() * 2;
    record_.set_step_stride(stride);
    record_.set_step_rows(record_.step_rows() / 2 + 1);
    batch_.step_stride = stride;
    std::erase_if(batch_.events, [stride](const store::EventRow& row) { return row.step % stride != 0; });
  }
  record_.set_newest_step(step);
  record_.set_newest_step_sequence(record_.last_sequence() + 1);
}

void Draft::report(uint32_t rank, const v1::RankEvent& event) {
  const uint64_t step = event.has_step() ? event.step().step() : 0;
  if (step != 0) thin_before(step);
  v1::JobEvent entry;
  entry.mutable_rank_report()->set_rank(rank);
  entry.mutable_rank_report()->set_epoch(job().epoch());
  *entry.mutable_rank_report()->mutable_event() = event;
  add_event(std::move(entry), step);
}

absl::StatusOr<store::Batch> Draft::finish() {
  if (!problem_.ok()) return problem_;
  record_.set_revision(record_.revision() + 1);
  job().set_etag(absl::StrCat(absl::Hex(record_.revision())));
  batch_.job = store::JobRow{job_id(job().name()), record_.SerializeAsString()};
  if (!request_.empty()) batch_.answer = store::AnswerRow{request_, job().SerializeAsString()};
  return batch_;
}

std::string job_id(const std::string& name) {
  constexpr std::string_view kProjects = "projects/", kJobs = "/jobs/";
  if (name.compare(0, kProjects.size(), kProjects) != 0) return "";
  const size_t end = name.find('/', kProjects.size());  // Of the project.
  if (end == std::string::npos || end == kProjects.size() || name.compare(end, kJobs.size(), kJobs) != 0) return "";
  std::string id = name.substr(end + kJobs.size());
  return id.find('/') == std::string::npos ? id : "";
}

}  // namespace telar::server::jobs
