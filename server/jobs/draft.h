// A change of one job that is not yet stored: a copy of its record, the events that tell of the change, and the batch
// that makes both durable together. Dropped, nothing happened.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/clock.h"
#include "server/jobs/record.pb.h"
#include "server/store/store.h"

namespace telar::server::jobs {

// Step events of a job that are kept at most; beyond that every second of the older ones goes, again and again.
inline constexpr uint64_t kMostStepEvents = 20'000;

class Draft {
 public:
  // `now` is what people read, `moment` the same on the Timeline.
  Draft(JobRecord record, Clock::Wall now, Clock::Wall moment);

  JobRecord& record() { return record_; }
  const JobRecord& record() const { return record_; }
  v1::Job& job() { return *record_.mutable_job(); }
  const v1::Job& job() const { return record_.job(); }
  Clock::Wall now() const { return now_; }
  Clock::Wall moment() const { return moment_; }  // For what is counted from it, or until it.
  bool changed() const { return changed_; }
  void touch() { changed_ = true; }

  // Moves to `to`, tells why, and records it as an event. A transition that the table does not allow is a bug: it is
  // not made, and finish() refuses the draft.
  void transition(v1::Job::State to, const std::string& reason);
  // Adds an event of a rank to the history; step reports are thinned.
  void report(uint32_t rank, const v1::RankEvent& event);
  void set_stream(const store::StreamRow& stream) { batch_.stream = stream; }
  // The job as it is after this change answers the request from now on. `request` empty: no answer is kept.
  void set_answer(const std::string& request) { request_ = request; }

  // The job goes back to the queue because of a failure of this class.
  void note_restart(v1::FailureClass cause) { restarted_ = cause; }
  std::optional<v1::FailureClass> restarted() const { return restarted_; }

  // Numbers the change and returns what to commit. INTERNAL after an illegal transition.
  absl::StatusOr<store::Batch> finish();

 private:
  void add_event(v1::JobEvent event, uint64_t step);
  void thin_before(uint64_t step);

  JobRecord record_;
  const Clock::Wall now_;
  const Clock::Wall moment_;
  store::Batch batch_;
  std::string request_;
  absl::Status problem_;
  std::optional<v1::FailureClass> restarted_;
  bool changed_ = false;
};

// "projects/default/jobs/k3j9x2ab" -> "k3j9x2ab"; empty when it is no such name.
std::string job_id(const std::string& name);

}  // namespace telar::server::jobs
