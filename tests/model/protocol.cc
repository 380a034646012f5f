#include "tests/model/protocol.h"

#include <algorithm>
#include <cstring>

namespace telar::tests::model {
namespace {

using State = Protocol::State;

enum Wrong : uint8_t { kRight, kStalePublish, kLostSave, kTwoJobs };

// server/jobs/transitions.h
bool ending(uint8_t state) { return state == kRestarting || state == kCancelling || state == kFailing; }
bool placed(uint8_t state) { return state == kStarting || state == kRunning || ending(state); }
bool terminal(uint8_t state) { return state >= kSucceeded; }

int rank_on(const Job& job, int gang, int n) {
  for (int r = 0; r < gang; ++r) {
    if (job.rank[r].state != kNowhere && job.rank[r].node == n) return r;
  }
  return -1;
}

}  // namespace

State Protocol::start() const {
  State state{};
  state.faults = static_cast<uint8_t>(limits_.faults);
  state.up = 1;
  for (int j = 0; j < limits_.jobs; ++j) state.job[j].state = j == 0 && limits_.submits ? kAbsent : kQueued;
  for (int n = 0; n < kNodes; ++n) {
    state.worker[n].up = 1;
    register_node(state, n);
    state.worker[n].fresh = state.worker[n].wish.any = state.worker[n].latest.any = state.member[n].reported = 1;
    state.worker[n].unsaid = 0;
  }
  return state;
}

bool Protocol::over(const State& state) const {
  for (int j = 0; j < limits_.jobs; ++j) {
    if (!terminal(state.job[j].state)) return false;
  }
  return !limits_.submits || state.acknowledged != 0;
}

const char* Protocol::broken(const State& state) const {
  switch (state.wrong) {
    case kStalePublish:
      return "an epoch published after a newer one had restored or published";
    case kLostSave:
      return "an epoch restored less than what an earlier one was told it may publish";
    case kTwoJobs:
      return "one request made two jobs";
    default:
      break;
  }
  if (state.acknowledged && state.job[0].state == kAbsent && !(state.up && state.pending)) {
    return "an acknowledged job is lost";
  }
  for (int n = 0; n < kNodes; ++n) {
    int alive = 0;
    for (const auto& of_job : state.worker[n].process) {
      for (const Process& process : of_job) alive += process.alive;
    }
    if (alive > 1) return "two processes on one device";
    // A job that is over, or waits again, holds nothing; so this is also: not over while a process of it may live.
    if (alive > 0 && free(state, n)) return "a device counts as free, and a process is on it";
  }
  return nullptr;
}

void Protocol::next(const State& state, const Emit& emit) const {
  client(state, emit);
  if (state.up) {
    coordinator(state, emit);
  } else {
    State next = state;
    next.up = 1;  // Replay: everything is in the store.
    emit({"the coordinator starts"}, next);
  }
  for (int n = 0; n < kNodes; ++n) node(state, n, emit);
  if (state.faults > 0) faults(state, emit);
}

// client/commands/submit.cc: one request_id, asked again until it is answered. JobManager::create and cancel.
void Protocol::client(const State& state, const Emit& emit) const {
  State next = state;
  if (limits_.submits && !state.acknowledged) {
    if (!state.request) {
      next.request = 1;
      emit({"the client asks for a job"}, next);
      next = state;
    }
    if (state.answered) {
      next.answered = 0;
      next.acknowledged = 1;
      emit({"the client has its answer"}, next);
      next = state;
    }
  }
  if (!state.up) return;
  if (state.request) {
    const bool known = (state.job[0].state != kAbsent || state.pending) && !mistakes_.forgets_requests;
    next.request = 0;
    next.answered = 1;
    if (!known && mistakes_.answers_before_storing) next.pending = 1;
    if (!known && !mistakes_.answers_before_storing) {
      if (++next.made > 1) next.wrong = kTwoJobs;
      if (next.job[0].state == kAbsent) next.job[0].state = kQueued;
    }
    emit({"the coordinator takes the request", -1, 0}, next);
    next = state;
  }
  if (state.pending) {
    next.pending = 0;
    next.job[0].state = kQueued;
    emit({"the coordinator stores the job", -1, 0}, next);
    next = state;
  }
  Job& job = next.job[0];
  if (limits_.cancels && !state.cancelled && job.state != kAbsent && !terminal(job.state) && job.state != kFailing) {
    next.cancelled = 1;
    job.state = job.state == kQueued ? kCancelled : kCancelling;
    settle(job);
    emit({"somebody cancels", -1, 0}, next);
  }
}

// Cluster::free_devices: nobody holds it, and its worker has said what runs there.
bool Protocol::free(const State& state, int n) const {
  const Member& member = state.member[n];
  if (!state.up || !member.known || !member.reported || member.strangers) return false;
  if (member.lost && !mistakes_.reuses_lost_devices) return false;
  for (int j = 0; j < limits_.jobs; ++j) {
    const Job& job = state.job[j];
    const int rank = rank_on(job, gang(j), n);
    const bool given_up = mistakes_.reuses_lost_devices && rank >= 0 && job.rank[rank].state == kLost;
    if (placed(job.state) && rank >= 0 && !given_up) return false;
  }
  return true;
}

// server/jobs/epoch.cc: step(), and judge() of restart_policy.cc.
void Protocol::settle(Job& job) const {
  for (;;) {
    bool gone = true, all_run = true, all_finished = true;
    for (int r = 0; r < kNodes; ++r) {
      const Rank& rank = job.rank[r];
      if (rank.state == kNowhere) continue;
      gone &= rank.state == kExited || rank.state == kLost;
      all_run &= rank.state == kRuns || rank.state == kExited;
      all_finished &= (job.finished >> r & 1) != 0;
    }
    const bool paid =
        job.cause == kOwnFault ? job.own_restarts < limits_.own_restarts : job.node_restarts < limits_.node_restarts;
    if (job.state == kStarting || job.state == kRunning) {
      if (job.cause != kNoCause) {
        job.state = paid ? kRestarting : kFailing;
      } else if (gone && all_finished) {
        job.state = kSucceeded;
      } else if (job.state == kStarting && all_run) {
        job.state = kRunning;
      } else {
        return;
      }
    } else if (gone && job.state == kRestarting) {
      ++(job.cause == kOwnFault ? job.own_restarts : job.node_restarts);
      job.state = kQueued;
    } else if (gone && ending(job.state)) {
      job.state = job.state == kCancelling ? kCancelled : kFailed;
    } else {
      return;
    }
    if (placed(job.state)) continue;
    for (Rank& rank : job.rank) rank = {};
    job.cause = job.finished = 0;
  }
}

// server/jobs/assignments.cc
Wish Protocol::assignments(const State& state, int n) const {
  Wish wish{};
  wish.any = 1;
  for (int j = 0; j < limits_.jobs; ++j) {
    const Job& job = state.job[j];
    const int rank = rank_on(job, gang(j), n);
    if (!placed(job.state) || rank < 0 || job.rank[rank].state == kLost || job.rank[rank].state == kExited) continue;
    wish.told[j] = static_cast<uint8_t>(4 * job.epoch + (rank == 0 ? 2 : 0) + (ending(job.state) ? 1 : 0));
  }
  return wish;
}

// JobManager::heartbeat, then observe() and observe_absence() of epoch.cc.
void Protocol::take(State& state, int n, bool late) const {
  Worker& worker = state.worker[n];
  Member& member = state.member[n];
  const Heartbeat report = late ? worker.late : worker.under_way;
  (late ? worker.late : worker.under_way) = {};
  if (!member.known || member.lost) {
    if (!late) worker.connected = 0;  // NOT_REGISTERED, LEASE_EXPIRED: the stream ends.
    return;
  }
  member.reported = 1;
  member.strangers = 0;
  for (int j = 0; j < limits_.jobs; ++j) {
    Job& job = state.job[j];
    const int r = rank_on(job, gang(j), n);
    for (int e = 1; e <= kEpochs; ++e) {
      const bool open = e == job.epoch && placed(job.state) && r >= 0 && job.rank[r].state != kLost;
      if (report.of[j][e] == kAlive && !open) member.strangers = 1;
    }
    if (!placed(job.state) || r < 0) continue;
    Rank& rank = job.rank[r];
    const uint8_t status = report.of[j][job.epoch];
    if (mistakes_.counts_heartbeats && member.told[j] > 0 && member.told[j] < 3) ++member.told[j];
    if (rank.state == kExited || rank.state == kLost) continue;
    if (status == kAlive) {
      rank.state = kRuns;
    } else if (status != kNothing) {
      rank.state = kExited;
      if (status == kEndedWell) job.finished |= static_cast<uint8_t>(1 << r);
      if (status == kCrashed && !ending(job.state) && job.cause == kNoCause) job.cause = kOwnFault;
    } else if (rank.state == kRuns) {
      rank.state = kExited;  // Its worker came back without it.
      if (!ending(job.state) && job.cause == kNoCause) job.cause = kNodeFault;
    } else if (mistakes_.counts_heartbeats && member.told[j] == 3) {
      rank.state = kExited;  // "never started"
    }
    settle(job);
  }
}

void Protocol::coordinator(const State& state, const Emit& emit) const {
  State next = state;
  for (int n = 0; n < kNodes; ++n) {
    const Worker& worker = state.worker[n];
    const Member& member = state.member[n];
    if (!member.lost && limits_.honest_clocks && (worker.cut || !worker.up)) {
      next.member[n].lost = 1;
      emit({"a lease runs out", n}, next);
      next = state;
    }
    if (worker.cut) continue;
    if (worker.late.any) {
      take(next, n, true);
      emit({"takes a heartbeat of an earlier registration", n}, next);
      next = state;
    }
    if (worker.under_way.any) {
      take(next, n, false);
      emit({"takes a heartbeat", n}, next);
      next = state;
    }
    // As an answer, or unasked.
    const Wish wish = assignments(state, n);
    if (worker.connected && member.reported && std::memcmp(&wish, &worker.latest, sizeof(wish)) != 0) {
      Worker& to = next.worker[n];
      to.answers[to.answers[0].any ? 1 : 0] = to.latest = wish;
      for (int j = 0; mistakes_.counts_heartbeats && j < limits_.jobs; ++j) {
        next.member[n].told[j] = wish.told[j] % 2 == 1 ? std::max<uint8_t>(1, member.told[j]) : 0;
      }
      emit({"sends assignments", n}, next);
      next = state;
    }
  }
  // JobManager::expire_leases, place_queued: a round of the scheduler.
  for (int j = 0; j < limits_.jobs; ++j) {
    const Job& job = state.job[j];
    for (int e = 1; e <= kEpochs; ++e) {
      if (state.files[j].stray[e] == 0) continue;
      next.files[j].stray[e] = 0;
      decide(next, j, e, state.files[j].stray[e]);
      emit({"takes a late CommitCheckpoint", -1, j, e}, next);
      next = state;
    }
    for (int r = 0; placed(job.state) && r < gang(j); ++r) {
      const Rank& rank = job.rank[r];
      if (!state.member[rank.node].lost || rank.state == kLost || rank.state == kExited) continue;
      next.job[j].rank[r].state = kLost;
      if (job.cause == kNoCause) next.job[j].cause = kNodeFault;
      settle(next.job[j]);
      emit({"gives a rank up for lost", rank.node, j, job.epoch}, next);
      next = state;
    }
    if (job.state != kQueued || job.epoch == kEpochs) continue;
    const bool alike = std::memcmp(&state.worker[0], &state.worker[1], sizeof(Worker)) == 0 &&
                       std::memcmp(&state.member[0], &state.member[1], sizeof(Member)) == 0;
    for (int first = 0; first < (alike ? 1 : kNodes); ++first) {
      bool fits = true;
      for (int r = 0; r < gang(j); ++r) fits &= free(state, (first + r) % kNodes);
      if (!fits) continue;
      Job& starting = next.job[j];
      starting.state = kStarting;
      ++starting.epoch;
      for (int r = 0; r < gang(j); ++r) starting.rank[r] = {static_cast<uint8_t>((first + r) % kNodes), kAssigned};
      for (Member& member : next.member) member.told[j] = 0;
      emit({"places", first, j, starting.epoch}, next);
      next = state;
    }
  }
}

// RankTable::reconcile and tick.
void Protocol::reconcile(Worker& worker, const Wish& wish) {
  for (int j = 0; j < kJobs; ++j) {
    for (int e = 1; e <= kEpochs; ++e) {
      Process& process = worker.process[j][e];
      uint8_t& entry = worker.entry[j][e];
      const bool named = wish.told[j] / 4 == e;
      const bool stop = named && wish.told[j] % 2 == 1;
      if (wish.any && !named && entry != kNothing) {
        process = {};  // Killed and forgotten.
        entry = worker.dir[j][e] = kNothing;
        continue;
      }
      if (entry == kAlive && stop) process.stopping = 1;
      if (entry == kNothing && stop) entry = kStopped;  // "stopped before it was started"
      if (entry == kAlive && !process.alive) entry = process.end;
    }
  }
  for (int j = 0; j < kJobs; ++j) {
    const int e = wish.told[j] / 4;
    if (e == 0 || wish.told[j] % 2 == 1 || worker.entry[j][e] != kNothing) continue;
    bool blocked = false;
    for (const auto& of_job : worker.entry) {
      for (const uint8_t entry : of_job) blocked |= entry == kAlive;  // RankTable::blocked
    }
    if (blocked) continue;
    worker.process[j][e] = {};
    worker.process[j][e].alive = 1;
    worker.process[j][e].leads = (wish.told[j] & 2) != 0;
    worker.entry[j][e] = kAlive;
    worker.dir[j][e] = 1;
  }
}

// Cluster::register_node, and what CoordinatorLink does before it says anything.
void Protocol::register_node(State& state, int n) const {
  Worker& worker = state.worker[n];
  if (mistakes_.takes_old_heartbeats) worker.late = worker.under_way;
  worker.under_way = {};
  worker.connected = worker.unsaid = 1;
  worker.fresh = mistakes_.says_what_was ? 1 : 0;
  if (!mistakes_.keeps_its_wish) {
    worker.older = worker.wish;
    worker.wish = {};
  }
  for (Wish& answer : worker.answers) answer = {};
  worker.latest = {};
  state.member[n] = {};
  state.member[n].known = 1;
}

// worker/agent: the daemon of a node and its line to the coordinator. Its processes go on without it.
void Protocol::node(const State& state, int n, const Emit& emit) const {
  State next = state;
  Worker& worker = next.worker[n];
  const Worker& now = state.worker[n];
  for (int j = 0; j < limits_.jobs; ++j) {
    for (int e = 1; e <= kEpochs; ++e) {
      Process& process = worker.process[j][e];
      if (!process.alive) continue;
      const bool told_the_end = !process.leads && state.files[j].done == e;
      if (process.stopping || told_the_end) {
        process = {};
        process.end = told_the_end ? kEndedWell : kStopped;
        emit({told_the_end ? "a process ends well" : "a process ends as it was told to", n, j, e}, next);
        next = state;
      }
      if (process.leads) leader(state, n, j, e, emit);
    }
  }
  if (now.cut) {
    worker.cut = 0;
    emit({"the network is whole again", n}, next);
    next = state;
  }
  if (!now.up) {
    worker.up = worker.unsaid = 1;
    for (int j = 0; j < kJobs; ++j) {  // Adopts what it finds on its disk.
      for (int e = 1; e <= kEpochs; ++e) {
        if (now.dir[j][e]) worker.entry[j][e] = now.process[j][e].alive ? uint8_t{kAlive} : now.process[j][e].end;
      }
    }
    std::memcpy(worker.said, worker.entry, sizeof(worker.said));
    emit({"the daemon starts", n}, next);
    return;
  }
  // Agent::run: a round of the daemon takes its wish, acts, and tells the line what there is now.
  for (const Wish* wish : {&now.wish, &now.older}) {
    if (wish == &now.older && !now.older.any) continue;
    reconcile(worker, *wish);
    worker.older = {};
    worker.fresh = 1;
    worker.unsaid |= std::memcmp(worker.entry, now.said, sizeof(now.said)) != 0;
    std::memcpy(worker.said, worker.entry, sizeof(now.said));
    if (std::memcmp(&worker, &now, sizeof(now)) != 0) {
      emit({wish == &now.wish ? "makes a round" : "ends a round by its older assignments", n}, next);
    }
    next = state;
  }
  // CoordinatorLink
  if (now.answers[0].any && !now.cut) {
    worker.older = now.wish;
    worker.wish = now.answers[0];
    worker.answers[0] = now.answers[1];
    worker.answers[1] = {};
    emit({"reads assignments", n}, next);
    next = state;
  }
  if (now.cut || !state.up) return;
  if (!now.connected) {
    register_node(next, n);
    emit({"registers", n}, next);
  } else if (now.fresh && !now.under_way.any &&
             (now.unsaid || state.member[n].lost || mistakes_.counts_heartbeats)) {  // Others would change nothing.
    worker.unsaid = 0;
    worker.under_way.any = 1;
    std::memcpy(worker.under_way.of, now.said, sizeof(now.said));
    emit({"sends a heartbeat", n}, next);
  }
}

// JobManager::find_saving
bool Protocol::may_ask(const State& state, int j, int e) const {
  const Job& job = state.job[j];
  return job.epoch == e && placed(job.state) && job.rank[0].state != kExited && job.rank[0].state != kLost;
}

// JobManager::commit_checkpoint
bool Protocol::decide(State& state, int j, int e, int step) const {
  Job& job = state.job[j];
  if (!may_ask(state, j, e) && !mistakes_.epoch_unchecked) return false;
  if (job.commit_epoch == e && job.commit_step > step) return false;
  job.commit_epoch = static_cast<uint8_t>(e);
  job.commit_step = static_cast<uint8_t>(step);
  return true;
}

// Rank 0: worker/train/saved_state.cc (choose), worker/checkpoint/commit.cc, checkpoint_writer.cc; one save at a time.
void Protocol::leader(const State& state, int n, int j, int e, const Emit& emit) const {
  State next = state;
  Process& process = next.worker[n].process[j][e];
  Files& files = next.files[j];
  const auto then = [&](const char* what, Phase phase) {
    process.phase = phase;
    emit({what, n, j, e}, next);
  };
  const auto any = [](const uint8_t* from, const uint8_t* to) {
    return std::any_of(from, to, [](uint8_t step) { return step != 0; });
  };
  const bool newer = files.by > e || any(files.temp + e + 1, files.temp + kEpochs + 1);  // CheckpointWriter::fence
  switch (process.phase) {
    case kBorn:
      if (any(files.temp + 1, files.temp + e + 1) && !mistakes_.sweeps_first) {
        return then("finds what an earlier save left", kAsksForLast);
      }
      [[fallthrough]];
    case kSweeps:
      std::fill(files.temp + 1, files.temp + e + 1, 0);
      if (files.newest < files.promised && files.promised_by < e) next.wrong = kLostSave;
      files.active = std::max(files.active, static_cast<uint8_t>(e));
      process.at = files.newest;
      process.epoch = process.step = 0;
      return then("clears up and restores", kIdle);
    case kRollsForward:
      if (files.temp[process.epoch] == process.step && files.newest < process.step) {
        files.newest = process.step;
        files.by = process.epoch;
        files.temp[process.epoch] = 0;
      }
      return then("publishes what was decided, if it is not", kSweeps);
    case kIdle:
      if (process.saves == limits_.saves) {
        files.done = static_cast<uint8_t>(e);
        process = {};
        process.end = kEndedWell;
        return then("is through", kBorn);
      }
      ++process.saves;
      ++process.at;
      if (newer) return then("may not save beside a newer epoch", kIdle);
      std::fill(files.temp + 1, files.temp + e + 1, 0);
      files.temp[e] = process.at;
      return then("saves under a temporary name", kStaged);
    case kStaged:
      if (newer || files.newest >= process.at) {
        files.temp[e] = 0;
        return then("takes its save away", kIdle);
      }
      return then("is about to ask", mistakes_.publishes_unasked ? kMayPublish : kAsksToPublish);
    case kMayPublish:
      if (files.temp[e] == process.at) {
        if (files.active > e) next.wrong = kStalePublish;
        files.newest = std::max(files.newest, process.at);
        files.by = static_cast<uint8_t>(e);
        files.active = std::max(files.active, files.by);
        files.temp[e] = 0;
      }
      return then("renames its save", kIdle);
    default:
      return asks(state, n, j, e, emit);
  }
}

// The calls CommitCheckpoint and LastCommit. One that is not answered is made again.
void Protocol::asks(const State& state, int n, int j, int e, const Emit& emit) const {
  State next = state;
  Process& process = next.worker[n].process[j][e];
  Files& files = next.files[j];
  const bool saving = process.phase == kAsksToPublish;
  if (saving && state.faults > 0) {  // PatientCommitter::set_patience; the question is still on its way.
    --next.faults;
    files.stray[e] = process.at;
    process.phase = kIdle;
    emit({"gives up waiting for an answer", n, j, e, true}, next);
    next = state;
  }
  if (!state.up || state.worker[n].cut) return;
  if (!saving && may_ask(state, j, e)) {
    process.epoch = state.job[j].commit_epoch;
    process.step = state.job[j].commit_step;
    process.phase = process.epoch == 0 ? kSweeps : kRollsForward;
    emit({"hears what was decided last", n, j, e}, next);
  } else if (!saving) {
    process = {};
    process.end = kCrashed;
    emit({"is refused, and ends", n, j, e}, next);
  } else if (decide(next, j, e, process.at)) {
    if (state.faults > 0) {
      --next.faults;
      emit({"may publish, but the answer is lost", n, j, e, true}, next);
      ++next.faults;
    }
    process.phase = kMayPublish;
    if (files.promised_by <= e) {
      files.promised = process.at;
      files.promised_by = static_cast<uint8_t>(e);
    }
    emit({"hears that it may publish", n, j, e}, next);
  } else {
    files.temp[e] = 0;
    process.phase = kIdle;
    emit({"is refused, and takes its save away", n, j, e}, next);
  }
}

}  // namespace telar::tests::model
