// What docs/adr/0010 describes, small enough to try out every order of everything that can happen: a client, the
// coordinator with its store, two workers with one device each, the processes of one or two jobs, and the run's files.
//
// Every line of next() is one atomic step of one party; between any two of them any other party may take any number of
// steps, which is what a slow network, a long pause or a stopped process looks like to the others. Steps that are
// marked as faults are paid from Limits::faults. Clocks promise nothing: a lease may run out at any moment, unless
// Limits::honest_clocks, where a node must have been silent.
//
// The code that each part stands for is named beside it. Output (logs, events) is left out: it is taken over by line
// and byte, whoever sends it.
#pragma once

#include <cstdint>
#include <functional>

#include "tests/model/explorer.h"

namespace telar::tests::model {

inline constexpr int kNodes = 2, kJobs = 2, kEpochs = 3;

enum JobState : uint8_t {
  kAbsent,
  kQueued,
  kStarting,
  kRunning,
  kRestarting,
  kCancelling,
  kFailing,
  kSucceeded,
  kFailed,
  kCancelled
};
enum RankState : uint8_t { kNowhere, kAssigned, kRuns, kExited, kLost };
enum Cause : uint8_t { kNoCause, kOwnFault, kNodeFault };
// What a worker says of a process.
enum Status : uint8_t { kNothing, kAlive, kEndedWell, kCrashed, kStopped };
enum Phase : uint8_t { kBorn, kAsksForLast, kRollsForward, kSweeps, kIdle, kStaged, kAsksToPublish, kMayPublish };

// Mistakes to plant. All false: what the code does.
struct Mistakes {
  bool publishes_unasked = false;       // The rename alone decides, as it did once.
  bool epoch_unchecked = false;         // CommitCheckpoint stores whatever it is asked.
  bool reuses_lost_devices = false;     // A lease that ran out frees the devices at once.
  bool answers_before_storing = false;  // Create is answered, then stored.
  bool forgets_requests = false;        // A repeated Create makes another job.
  bool sweeps_first = false;            // An epoch clears up before it asks what was decided.
  bool counts_heartbeats = false;       // Two heartbeats after STOP prove that a rank will not start any more.
  bool takes_old_heartbeats = false;    // One of an earlier registration counts after the worker registered again.
  bool keeps_its_wish = false;          // A worker that registers again still acts on what it was told before.
  bool says_what_was = false;           // Its first heartbeat then may be older than its last start.
};

struct Limits {
  int jobs = 1;
  int gang = 1;   // Ranks of job 0; others have one.
  int saves = 1;  // Of each epoch.
  int own_restarts = 1, node_restarts = 1;
  int faults = 2;
  bool submits = false;  // Job 0 is created by a client, else it is there.
  bool cancels = false;  // Somebody cancels job 0, at some time.
  bool honest_clocks = false;
};

struct Rank {
  uint8_t node, state;
};
struct Job {  // server/jobs/record.proto; the coordinator's memory holds what is stored, and nothing else.
  uint8_t state, epoch, cause, finished /* ranks, as bits */, own_restarts, node_restarts, commit_epoch, commit_step;
  Rank rank[kNodes];
};
struct Member {  // server/cluster/cluster.h, lost with the coordinator.
  uint8_t known, reported, strangers, lost, told[kJobs] /* heartbeats since it was sent STOP; for one mistake only */;
};
using Statuses = uint8_t[kJobs][kEpochs + 1];
struct Wish {
  uint8_t any, told[kJobs] /* 4 * epoch + 2 for rank 0 + 1 to stop */;
};
struct Heartbeat {
  uint8_t any;
  Statuses of;
};
struct Process {
  uint8_t alive, end /* Status */, leads, stopping, phase, epoch, step /* that was decided */, at /* its own */, saves;
};
struct Worker {
  uint8_t up, connected, cut, fresh /* `said` is newer than the registration */, unsaid;
  Statuses entry, said;       // worker/agent/rank_table.h; what the next heartbeat of coordinator_link.h says.
  Wish wish, older;           // What it was told; and before, which a round that takes long may still go by.
  Wish answers[2], latest;    // On their way to it, in order; what was sent last.
  Heartbeat under_way, late;  // Of the newest registration, and of the one before it.
  Statuses dir;               // Rank directories.
  Process process[kJobs][kEpochs + 1];
};
struct Files {  // <run>/ckpt
  uint8_t temp[kEpochs + 1] /* the step in it */, newest, by /* its epoch */;
  uint8_t stray[kEpochs + 1] /* a CommitCheckpoint that nobody waits for */;
  uint8_t active /* newest epoch that restored or published */, done /* newest that came to its end */;
  uint8_t promised /* step of an answer that arrived */, promised_by;
};

class Protocol {
 public:
  struct State {
    uint8_t faults, up, request, answered, acknowledged, pending, made, cancelled, wrong;
    Job job[kJobs];
    Member member[kNodes];
    Worker worker[kNodes];
    Files files[kJobs];
    bool operator==(const State&) const = default;
  };
  using Emit = std::function<void(const Step&, const State&)>;

  explicit Protocol(Limits limits, Mistakes mistakes = {}) : limits_(limits), mistakes_(mistakes) {}

  State start() const;
  void next(const State& state, const Emit& emit) const;
  const char* broken(const State& state) const;
  bool over(const State& state) const;

 private:
  void client(const State& state, const Emit& emit) const;
  void coordinator(const State& state, const Emit& emit) const;
  void node(const State& state, int n, const Emit& emit) const;
  void leader(const State& state, int n, int j, int e, const Emit& emit) const;
  void asks(const State& state, int n, int j, int e, const Emit& emit) const;
  void faults(const State& state, const Emit& emit) const;

  bool free(const State& state, int n) const;
  void take(State& state, int n, bool late) const;
  void settle(Job& job) const;
  static void stop_all(State& state, int n, uint8_t end);
  Wish assignments(const State& state, int n) const;
  static void reconcile(Worker& worker, const Wish& wish);
  void register_node(State& state, int n) const;
  bool may_ask(const State& state, int j, int e) const;
  bool decide(State& state, int j, int e, int step) const;
  int gang(int job) const { return job == 0 ? limits_.gang : 1; }

  const Limits limits_;
  const Mistakes mistakes_;
};

}  // namespace telar::tests::model
