// All jobs, their queue, and what the workers are to do. One lock; nothing is told or acted on before it is stored.
//
// The lock is given up while the store writes, so that changes of many jobs share one write, and a slow store holds
// nobody up who only reads: such a change is *pending*, and nobody sees it before it is stored. A job or node has at
// most one: whoever wants to change the same waits for it first, without the lock (await()); the scheduler's round
// leaves the job out, and comes again.
//
// Knows no gRPC: requests and answers are the messages of the contract, errors carry the reasons and details that it
// promises. Every method may be called from any thread. A failure of the store is returned as it is and changes
// nothing.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "server/cluster/cluster.h"
#include "server/jobs/admission.h"
#include "server/jobs/change_signal.h"
#include "server/jobs/dependencies.h"
#include "server/jobs/device_watch.h"
#include "server/jobs/draft.h"
#include "server/jobs/hang_watch.h"
#include "server/jobs/hold.h"
#include "server/jobs/job_types.h"
#include "server/jobs/pending.h"
#include "server/jobs/queue.h"
#include "server/jobs/timeline.h"
#include "server/jobs/waiting.h"
#include "server/store/log_store.h"
#include "server/store/store.h"
#include "telar/v1/cluster.pb.h"
#include "telar/v1/jobs.pb.h"

namespace telar::server::jobs {

class JobManager {
 public:
  // Reads every job from the store; those that were placed go on, and their nodes have a lease to come back. All
  // pointers must outlive the manager; `observer` may be null.
  static absl::StatusOr<std::unique_ptr<JobManager>> open(JobOptions options, const Clock* clock, store::Store* store,
                                                          store::LogStore* logs, Observer* observer);

  // For people. `owner`: whose it is; empty: nobody is known. A request_id counts for its owner alone.
  absl::StatusOr<v1::Job> create(v1::CreateJobRequest request, const std::string& owner = "");
  // The jobs of the answer have no spec: there may be ten thousand.
  absl::StatusOr<v1::CreateJobArrayResponse> create_array(v1::CreateJobArrayRequest request,
                                                          const std::string& owner = "");
  absl::StatusOr<v1::Job> update(const v1::UpdateJobRequest& request);
  std::vector<v1::Queue> queues() const;  // In order of name, as are the nodes.
  absl::StatusOr<v1::Job> cancel(const v1::CancelJobRequest& request);
  absl::StatusOr<v1::Job> trace(const v1::TraceJobRequest& request);
  absl::StatusOr<v1::Job> get(const std::string& name) const;
  absl::StatusOr<v1::ListJobsResponse> list(const v1::ListJobsRequest& request) const;
  absl::StatusOr<EventPage> events(const std::string& name, uint64_t after, int limit) const;
  absl::StatusOr<store::LogStore::Piece> read_log(const std::string& name, uint64_t epoch, uint32_t rank,
                                                  uint64_t offset) const;
  // Gives room to the logs of newer jobs; see LogStore::remove_old(). May take long; call it now and then.
  void remove_old_logs();
  std::vector<v1::Node> nodes() const;
  // Gives a device back. NOT_FOUND (NODE_NOT_FOUND, DEVICE_NOT_FOUND); FAILED_PRECONDITION (STILL_THERE).
  absl::StatusOr<v1::Node> release_device(const v1::ReleaseDeviceRequest& request);

  // For operators: OPEN, CORDONED or DRAINING. `answer` (may be empty) is the key that the answer is kept under.
  absl::StatusOr<v1::Node> set_scheduling(const std::string& node, v1::Node::Scheduling scheduling,
                                          const std::string& reason, const std::string& answer);
  void set_queues(std::vector<QueueConfig> queues);  // What is in the --queues file now.

  // For workers.
  absl::StatusOr<v1::RegisterNodeResponse> register_node(const v1::RegisterNodeRequest& request);
  void set_connected(const std::string& node, const std::string& incarnation, bool connected);
  absl::Status heartbeat(const v1::HeartbeatRequest& request);
  v1::HeartbeatResponse assignments(const std::string& node);
  uint64_t assignments_version(const std::string& node) const;
  // Told of every change of that node's assignments. Valid for the life of the manager.
  ChangeSignal& assignment_changes(const std::string& node);
  absl::StatusOr<v1::AppendLogResponse> append_log(const v1::AppendLogRequest& request);
  absl::StatusOr<v1::ReportEventsResponse> report_events(const v1::ReportEventsRequest& request);
  absl::Status report_flight(const v1::ReportFlightRequest& request);  // What was asked for in assignments().
  // The keys through which the ranks of an epoch meet; durable, so that a gang goes on meeting after a restart of the
  // coordinator. FAILED_PRECONDITION (STALE_EPOCH) unless the epoch is the job's current one, and not being ended.
  absl::Status put_key(const std::string& job, uint64_t epoch, const std::string& key, const std::string& value);
  absl::StatusOr<std::map<std::string, std::string>> keys(const std::string& job, uint64_t epoch) const;

  // Whether an epoch may publish its checkpoint of `step`, which is durable: a compare-and-swap on the job's epoch,
  // stored before it is answered, and the same answer again when it is repeated. FAILED_PRECONDITION: STALE_EPOCH
  // unless the epoch is the job's current one, being ended or not, and its rank 0 may still be alive; STALE_STEP when a
  // later step of this epoch was committed.
  absl::Status commit_checkpoint(const std::string& job, uint64_t epoch, uint64_t step);
  // The last one that may be published, of whichever epoch. STALE_EPOCH as above.
  absl::StatusOr<std::optional<Commit>> last_commit(const std::string& job, uint64_t epoch) const;

  // Of a placed job that has no forecast in its current epoch yet: forecaster.h.
  std::optional<ForecastWish> forecast_wanted() const;
  void set_forecast(const ForecastWish& wish, v1::JobForecast forecast);

  void set_rendezvous_address(const std::string& address);  // Where the port is known late. Before any worker comes.
  void shut_down();                                         // Every stream and wait ends from now on.
  // One round of the scheduler: leases, then the queue. Call it about once a second and after every change.
  void tick();
  ChangeSignal& changes() { return changes_; }

  // Some jobs at a time, so that others get the lock between: whoever changes counts as before or after.
  Census census() const;
  std::vector<std::string> metrics_addresses() const;  // Of the workers.

 private:
  JobManager(JobOptions options, const Clock* clock, store::Store* store, store::LogStore* logs, Observer* observer);

  // Whether the request was answered before; `answer` is that answer then. What comes often asks without the lock, as
  // the store may be far away, and again where await() says so.
  absl::StatusOr<bool> replayed(const std::string& request, google::protobuf::Message& answer) const;
  // Decides each auto of the spec, with mutex_ free: it may take seconds. What and why, for people; empty: it has none.
  absl::StatusOr<std::string> decide_autos(v1::CreateJobRequest& request);
  Hold take(Doing doing) const { return Hold(mutex_, doing, observer_); }
  // All below want mutex_ held.
  absl::Status replay();
  absl::Status replay_nodes();
  absl::StatusOr<const JobRecord*> find(const std::string& name) const;
  // The record, if this epoch is the current one and rank 0 of it may be alive.
  absl::StatusOr<const JobRecord*> find_saving(const std::string& job, uint64_t epoch) const;
  // The record, if this epoch is the current one and not being ended.
  absl::StatusOr<const JobRecord*> find_current(const std::string& job, uint64_t epoch) const;
  // The record, if this rank of this epoch may still send: it is placed there, and neither closed nor lost.
  absl::StatusOr<const JobRecord*> find_open(const std::string& job, uint64_t epoch, uint32_t rank,
                                             const std::string& node) const;
  // Both go on behind a job, by id or order, and move it; false when all were counted, or the page is complete.
  bool count_some(std::string* id, Census* census) const;
  bool list_some(const v1::ListJobsRequest& request, int most, uint64_t* below, v1::ListJobsResponse* response) const;
  // The job as people see it: with why it waits, and how long it runs by now.
  v1::Job shown(const JobRecord& record) const;
  void show_placed(const JobRecord& record, v1::Job& job) const;  // How its ranks get on, and its forecast.
  const v1::JobForecast* forecast_of(const v1::Job& job) const;   // Of its epoch; null: none yet.
  // The first of its dependencies that is so, in words.
  std::optional<std::string> dependency_that(Dependence is, const v1::Job& job) const;
  // A new job of a complete spec, named and in the queue, but nowhere stored yet.
  Draft submitted(const std::string& project, const std::string& owner, const v1::JobSpec& spec, const std::string& id,
                  uint64_t order, const std::string& why = "submitted") const;
  std::string new_id() const;
  void try_out(const JobRecord& record, v1::Job& job);  // Fills in where the job would start now, or why not.
  v1::CreateJobArrayResponse tried_out(const std::vector<Draft>& drafts);
  absl::Status check_move(const JobRecord& record, const std::string& to) const;
  SchedulingContext scheduling_context() const;
  absl::StatusOr<store::Batch> finish(Draft& draft) const;  // Settles it. INTERNAL: a change of this job is pending.
  void let_count(const Draft& draft);
  void apply(const JobRecord& before, const JobRecord& after);
  void index_nodes(const std::string& id, const v1::Job& job, bool placed);
  void bump(const v1::Job& job);
  void bump_node(const std::string& node);
  void plan_retry(const JobRecord& before, const JobRecord& after);
  Draft draft_of(const std::string& id) const;

  // Pending changes: job_manager_pending.cc.
  // Settles the drafts and lets everyone know of the change but those who read.
  absl::StatusOr<std::shared_ptr<Pending>> begin(Change change);
  void add(AllPending& all, Change change, const char* what);  // One that is changed begins; the log says if it cannot.
  // Gives up `hold`, stores, takes it again, and lets the changes count. All are tried; the first error is returned.
  absl::Status finish_each(Hold& hold, const AllPending& all);
  // The same in few writes; those of a write that fails one by one. How each ended; the log says what did not.
  std::vector<absl::Status> finish_round(Hold& hold, const AllPending& all, const char* what);
  absl::StatusOr<v1::Job> commit(Hold& hold, Draft draft, const std::string& request = "");
  absl::StatusOr<v1::Node> commit_node(Hold& hold, Change change, const std::string& request, const v1::Node& node);
  // Until nothing is pending of this key or request. Gives up `hold`: look at nothing before. True: something was;
  // await_answer: it is answered.
  bool await(Hold& hold, const std::string& key, const std::string& request = "");
  absl::StatusOr<bool> await_answer(Hold& hold, const std::string& key, const std::string& request,
                                    google::protobuf::Message& answer);
  absl::StatusOr<uint64_t> await_line(Hold& hold, const v1::ReportEventsRequest& request);  // The next of its rank.
  void await_node(Hold& hold, const std::string& node);  // And of jobs that have ranks there.
  bool pending(const std::string& key) const { return pending_.count(key) != 0; }
  void apply_pending(Pending& pending);
  // Needs no lock. Errors in the words of this interface.
  absl::Status store(const std::vector<store::Batch>& batches) const;
  absl::Status take_in(Hold& hold, const v1::HeartbeatRequest& request);
  void observe_node(Draft& draft, const v1::HeartbeatRequest& request);
  bool has_strangers(const v1::HeartbeatRequest& request) const;
  // Faults and what is left on devices: quarantine, and the end of what runs there.
  void add_devices(const std::string& node, const DeviceWatch::Changes& devices, Change& change);
  void take_finding(const std::string& node, const DeviceWatch::Finding& finding, Draft& draft) const;
  void give_up_receipts(Hold& hold);
  // After bytes of a log came or were given up: says on the job how many are missing, if any are.
  absl::Status note_missing_log(const v1::AppendLogRequest& request);
  // Hangs, stragglers, elastic jobs: job_manager_hang.cc.
  void hear_paces(const v1::HeartbeatRequest& request);
  void add_flight_wishes(const std::string& node, v1::HeartbeatResponse& response) const;
  void add_trace_wishes(const std::string& node, v1::HeartbeatResponse& response) const;
  bool look_after_gangs(Hold& hold);  // False: it is too soon for another look.
  void judge_hang(Hold& hold, const std::string& id);
  void note_stragglers(Hold& hold, const std::string& id);
  void grow_shrunk(Hold& hold);
  uint32_t replicas_if_queued(const JobRecord& record);  // Of a job that runs, if it were not placed; 0: none.
  void keep_timeline(Hold& hold);
  void expire_leases(Hold& hold);
  // Time limits, drains, and dependencies that cannot hold any more.
  void enforce(Hold& hold);
  std::string why_it_moves(const v1::Job& job) const;  // From a node that is drained or ends; empty: it does not.
  void place_queued(Hold& hold);
  RoundView view() const;
  Holder holder_of(const JobRecord& record, const cluster::Inventory& inventory, Clock::Wall now) const;
  RoundInput round_input(const RoundView& view, const std::set<uint64_t>& held_back) const;
  std::set<uint64_t> held_back() const;
  std::unique_ptr<Explainer> explainer_of(RoundView view) const;  // Names jobs as they are now.
  void start(Hold& hold, AllPending changes, RoundView& view);    // Stores them along with the starts.
  void preempt(const Preemption& preemption, AllPending& changes);

  JobOptions options_;  // Constant but for rendezvous_address and queues, which mutex_ guards.
  const Roots roots_;
  const Clock* const clock_;
  store::Store* const store_;
  store::LogStore* const logs_;
  Observer* const observer_;
  ChangeSignal changes_;

  std::mutex layouts_mutex_;  // One search of layouts at a time; never taken under mutex_.
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  Timeline timeline_;
  cluster::Cluster cluster_;
  DeviceWatch devices_{&cluster_.quarantine()};
  std::map<std::string, JobRecord> jobs_;     // By id.
  std::map<uint64_t, std::string> by_order_;  // Submit order -> id.
  Line line_;                                 // The QUEUED among them.
  uint64_t next_order_ = 1;
  std::unique_ptr<Explainer> explainer_;  // Of the last round; null before the first.
  Clock::Steady last_round_;
  std::pair<uint64_t, uint64_t> last_round_seen_;            // Versions of cluster_ and line_ behind it.
  std::set<std::string> placed_;                             // Ids of those that have, or may have, processes.
  std::map<std::string, std::set<std::string>> placed_on_;   // The same, by node.
  std::map<std::string, std::shared_ptr<Pending>> pending_;  // By job id, or node_key().
  std::map<std::string, std::map<std::pair<uint64_t, uint32_t>, uint64_t>> lines_;  // Job id -> stream -> next line.
  std::map<std::string, std::string> pending_answers_;                              // Request -> one of these.
  std::map<std::string, std::unique_ptr<ChangeSignal>> node_signals_;
  std::map<std::string, uint64_t> versions_;       // Of each node's assignments.
  uint64_t next_version_;                          // Above those of any former life of the coordinator.
  std::set<std::string> heard_;                    // Nodes that sent a heartbeat since they registered.
  std::map<std::string, StopTold> stops_;          // Job id -> who was told to stop.
  std::map<std::string, Clock::Steady> retry_at_;  // Job id -> not before; retry_time, whatever happens to the wall's.
  HangWatch hangs_;
  std::map<std::string, std::pair<uint64_t, v1::JobForecast>> forecasts_;  // By id, with the epoch; of placed jobs.
  std::optional<Clock::Steady> looked_after_, looked_for_growth_;          // Gangs; shrunk ones.
};

}  // namespace telar::server::jobs
