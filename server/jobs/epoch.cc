#include "server/jobs/epoch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/cluster/times.h"
#include "server/jobs/conditions.h"
#include "server/jobs/goodput.h"
#include "server/jobs/receipts.h"
#include "server/jobs/restart_policy.h"
#include "server/jobs/transitions.h"

namespace telar::server::jobs {
namespace {

using v1::Job;
using v1::RankPlacement;

constexpr int kInterrupted = 10;  // Exit code of a rank that saved its state on SIGTERM.
constexpr int kKilled = 128 + 9;
constexpr int kTerminated = 128 + 15;

RankPlacement& place_of(Draft& draft, uint32_t rank) { return *draft.job().mutable_placement(static_cast<int>(rank)); }
RankRecord& record_of(Draft& draft, uint32_t rank) { return *draft.record().mutable_ranks(static_cast<int>(rank)); }

void add_failure(Draft& draft, uint32_t rank, v1::FailureClass failure_class, const std::string& message) {
  Failure* failure = draft.record().add_failures();
  failure->set_rank(rank);
  failure->set_node(place_of(draft, rank).node());
  failure->set_failure_class(failure_class);
  failure->set_message(message);
}

// Decides whether the end of a process is a failure of the job.
void judge_exit(Draft& draft, const v1::RankStatus& status, bool told_to_stop, bool grace_over) {
  RankRecord& rank = record_of(draft, status.rank());
  const int code = status.exit_code();
  const bool stopping = ending(draft.job().state());
  const bool unborn = code == kTerminated;  // A rank that has begun to run waits for SIGTERM and does not die of it.
  if (code == kInterrupted || unborn || (code == 0 && rank.interrupted())) {
    rank.set_interrupted(true);
    if (!stopping || !told_to_stop) {
      add_failure(draft, status.rank(), v1::FAILURE_CLASS_UNSPECIFIED,
                  unborn ? "ended by SIGTERM before it began" : "its state is saved");
    }
    return;
  }
  if (code == 0) {
    if (rank.finished() || stopping) return;
    add_failure(draft, status.rank(), v1::INTERNAL, "exited with code 0 before its run was complete");
    return;
  }
  if (stopping && grace_over && code == kKilled) return;
  const bool own_words = rank.failure_class() != v1::FAILURE_CLASS_UNSPECIFIED;
  v1::FailureClass failure_class = own_words ? rank.failure_class() : status.failure_class();
  if (failure_class == v1::FAILURE_CLASS_UNSPECIFIED) failure_class = v1::CRASH;
  std::string message = own_words ? rank.failure_message() : status.message();
  if (message.empty()) {
    message = code > 128 ? absl::StrCat("killed by signal ", code - 128) : absl::StrCat("exit code ", code);
  }
  add_failure(draft, status.rank(), failure_class, message);
}

// Every process is over and its output is here, or its node is lost.
bool all_over(const JobRecord& record) {
  for (int i = 0; i < record.job().placement_size(); ++i) {
    const RankPlacement& place = record.job().placement(i);
    const bool shipped = place.state() == RankPlacement::EXITED && record.ranks(i).output_shipped();
    if (!shipped && place.state() != RankPlacement::LOST) return false;
  }
  return true;
}

// And every node has said what is left.
bool all_gone(const JobRecord& record) { return all_over(record) && missing_receipts(record).empty(); }

bool all_finished(const JobRecord& record) {
  return all_gone(record) && record.failures().empty() &&
         std::all_of(record.ranks().begin(), record.ranks().end(),
                     [](const RankRecord& rank) { return rank.finished(); });
}

bool all_run(const JobRecord& record) {
  return std::all_of(record.job().placement().begin(), record.job().placement().end(), [](const RankPlacement& place) {
    return place.state() == RankPlacement::RUNNING || place.state() == RankPlacement::EXITED;
  });
}

void queue_again(Draft& draft, const Verdict& verdict) {
  Job& job = draft.job();
  const std::chrono::seconds delay = count_restart(draft.record(), verdict);
  std::string reason;
  switch (verdict.budget) {
    case Budget::kNone:
      reason = absl::StrCat("goes on after ", verdict.message);
      break;
    case Budget::kOwn:
      reason = absl::StrCat("restart ", job.restarts(), " of ", job.spec().restart().max_restarts(), " after ",
                            verdict.message);
      break;
    case Budget::kNode:
      reason = absl::StrCat("node restart ", job.node_restarts(), " of ", job.spec().restart().max_node_restarts(),
                            " after ", verdict.message);
      break;
  }
  clear_condition(draft, "STRAGGLER");
  *job.mutable_retry_time() = cluster::to_timestamp(draft.now() + delay);
  draft.transition(Job::QUEUED, reason);
  draft.note_restart(verdict.failure_class);
  job.clear_placement();
  draft.record().clear_ranks();
  draft.record().clear_failures();
  draft.record().clear_stop_time();
  draft.record().clear_receipts();
  draft.record().clear_gone_time();
  draft.record().clear_interruption();
  draft.record().set_lost_node(verdict.failure_class == v1::NODE_LOST || verdict.failure_class == v1::DEVICE);
}

void fail(Draft& draft, const Verdict& verdict) {
  draft.job().set_failure_class(verdict.failure_class);
  draft.transition(Job::FAILING, verdict.message);
}

// One move of the machine; false when there is none.
bool step(Draft& draft) {
  const JobRecord& record = draft.record();
  const bool gone = all_gone(record);
  switch (record.job().state()) {
    case Job::STARTING:
    case Job::RUNNING: {
      if (!record.failures().empty()) {
        const Verdict verdict = judge(record);
        if (verdict.definite && !verdict.retry) {
          fail(draft, verdict);
        } else {
          draft.transition(Job::RESTARTING, verdict.message);
        }
        return true;
      }
      const bool alone = record.ranks_size() == 1;
      const std::string who = alone ? "its rank " : absl::StrCat("all ", record.ranks_size(), " ranks ");
      if (all_finished(record)) {
        draft.transition(Job::SUCCEEDED, who + "finished");
        return true;
      }
      if (record.job().state() == Job::RUNNING || !all_run(record)) return false;
      draft.transition(Job::RUNNING, who + (alone ? "runs" : "run"));
      return true;
    }
    case Job::RESTARTING: {
      const Verdict verdict = judge(record);
      if (!verdict.retry && (verdict.definite || gone)) {
        fail(draft, verdict);
        return true;
      }
      if (!gone) return false;
      queue_again(draft, verdict);
      return true;
    }
    case Job::CANCELLING:
      if (gone) draft.transition(Job::CANCELLED, "cancelled");
      return gone;
    case Job::FAILING:
      if (gone) draft.transition(Job::FAILED, std::string(record.job().message()));
      return gone;
    default:
      return false;
  }
}

}  // namespace

void begin_epoch(Draft& draft, const std::vector<cluster::Slot>& slots) {
  Job& job = draft.job();
  settle_state(draft.record(), draft.moment());  // Its time in the queue is not of the new epoch.
  job.set_epoch(job.epoch() + 1);
  job.clear_retry_time();
  job.clear_placement();
  job.clear_memory();
  draft.record().clear_ranks();
  draft.record().clear_failures();
  draft.record().clear_stop_time();
  draft.record().clear_receipts();
  draft.record().clear_gone_time();
  draft.record().clear_interruption();
  *draft.record().mutable_place_time() = cluster::to_timestamp(draft.moment());
  draft.record().clear_keys();
  for (const cluster::Slot& slot : slots) {
    RankPlacement* place = job.add_placement();
    place->set_rank(static_cast<uint32_t>(job.placement_size()) - 1);
    place->set_node(slot.node);
    *place->mutable_device() = slot.device;
    place->set_state(RankPlacement::ASSIGNED);
    draft.record().add_ranks();
  }
  draft.transition(Job::STARTING, absl::StrCat("placed ", slots.size(), slots.size() == 1 ? " rank" : " ranks"));
}

void observe(Draft& draft, const v1::RankStatus& status, bool told_to_stop, bool grace_over) {
  RankPlacement& place = place_of(draft, status.rank());
  RankRecord& rank = record_of(draft, status.rank());
  if (place.state() == RankPlacement::LOST) return;
  if (status.state() == RankPlacement::RUNNING && place.state() == RankPlacement::ASSIGNED) {
    place.set_state(RankPlacement::RUNNING);
    place.set_pid(status.pid());
    draft.touch();
  }
  if (status.state() != RankPlacement::EXITED) return;
  if (place.state() != RankPlacement::EXITED) {
    place.set_state(RankPlacement::EXITED);
    if (status.pid() != 0) place.set_pid(status.pid());
    place.set_exit_code(status.exit_code());
    place.set_message(status.message());
    if (status.finished()) rank.set_finished(true);
    judge_exit(draft, status, told_to_stop, grace_over);
    draft.touch();
  }
  if (status.output_shipped() && !rank.output_shipped()) {
    rank.set_output_shipped(true);
    draft.touch();
  }
}

void observe_absence(Draft& draft, uint32_t rank, bool gone) {
  RankPlacement& place = place_of(draft, rank);
  switch (place.state()) {
    case RankPlacement::ASSIGNED:
      if (!gone) return;
      place.set_message("its worker ended before it was started");
      interrupt(draft, absl::StrCat("moves away from node ", place.node(), ", whose worker ended"));
      break;
    case RankPlacement::RUNNING:
      if (!ending(draft.job().state())) add_failure(draft, rank, v1::NODE_LOST, "its worker came back without it");
      place.set_message("its worker came back without it");
      break;
    case RankPlacement::EXITED:
      if (record_of(draft, rank).output_shipped()) return;
      break;
    default:
      return;
  }
  place.set_state(RankPlacement::EXITED);
  record_of(draft, rank).set_output_shipped(true);  // There is nobody left to ship more.
  draft.touch();
}

void lose(Draft& draft, uint32_t rank) {
  RankPlacement& place = place_of(draft, rank);
  if (place.state() == RankPlacement::LOST) return;
  if (place.state() == RankPlacement::EXITED) {
    waive_receipt(draft, place.node());
    if (record_of(draft, rank).output_shipped()) return;
    record_of(draft, rank).set_output_shipped(true);
  } else {
    place.set_state(RankPlacement::LOST);
    place.set_message("the lease of its node ran out");
    add_failure(draft, rank, v1::NODE_LOST, place.message());
  }
  draft.touch();
}

void hang(Draft& draft, uint32_t rank, bool of_node, const std::string& message) {
  add_failure(draft, rank, v1::HANG, message);
  draft.record().mutable_failures()->rbegin()->set_of_node(of_node);
  draft.touch();
}

void fail_device(Draft& draft, uint32_t rank, const std::string& message) {
  const Job::State state = draft.job().state();
  if (state != Job::STARTING && state != Job::RUNNING && state != Job::RESTARTING) return;
  add_failure(draft, rank, v1::DEVICE, message);
  draft.touch();
}

void interrupt(Draft& draft, const std::string& reason) {
  const Job::State state = draft.job().state();
  if (state != Job::STARTING && state != Job::RUNNING) return;
  draft.record().set_interruption(reason);
  draft.transition(Job::RESTARTING, reason);
}

void end_at_time_limit(Draft& draft) {
  const Job::State state = draft.job().state();
  if (state != Job::QUEUED && state != Job::RUNNING) return;
  const std::string reason = absl::StrCat("ran for ", draft.job().spec().scheduling().time_limit_seconds(),
                                          " s, which is its scheduling.time_limit_seconds");
  draft.job().set_failure_class(v1::TIME_LIMIT);
  draft.job().clear_retry_time();
  draft.transition(state == Job::QUEUED ? Job::FAILED : Job::FAILING, reason);
}

void cancel(Draft& draft) {
  const Job::State state = draft.job().state();
  if (state == Job::QUEUED) {
    draft.job().clear_retry_time();
    draft.transition(Job::CANCELLED, "cancelled while it was queued");
  } else if (state == Job::STARTING || state == Job::RUNNING || state == Job::RESTARTING) {
    draft.transition(Job::CANCELLING, "cancel was asked for");
  }
}

void settle(Draft& draft) {
  while (step(draft)) {
  }
  JobRecord& record = draft.record();
  if (placed(record.job().state()) && all_over(record) && !record.has_gone_time()) {
    *record.mutable_gone_time() = cluster::to_timestamp(draft.moment());
  }
}

}  // namespace telar::server::jobs
