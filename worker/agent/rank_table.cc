#include "worker/agent/rank_table.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include <google/protobuf/util/time_util.h>
#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/utf8.h"
#include "worker/metrics/exit_codes.h"

namespace telar::agent {
namespace {

using std::chrono::milliseconds;
constexpr int kCannotStart = 127;  // As a shell says it.

// The daemon's environment, less what is between it and systemd, and with what a rank needs.
std::vector<std::string> environment_for(const v1::RankPlan& plan, const RankDir& directory) {
  const std::string threads = std::to_string(plan.threads());
  const std::vector<std::string> own = {
      directory.marker(), "OMP_NUM_THREADS=" + threads,
      "OMP_WAIT_POLICY=passive",       // Ranks share the cores: waiting must not burn them.
      "CUDA_DEVICE_ORDER=PCI_BUS_ID",  // So that ordinals are NVML's.
  };
  static const std::set<std::string> kNotForRanks = {"NOTIFY_SOCKET", "WATCHDOG_USEC",  "WATCHDOG_PID", "LISTEN_FDS",
                                                     "LISTEN_PID",    "LISTEN_FDNAMES", "INVOCATION_ID"};
  std::set<std::string> skipped = kNotForRanks;
  for (const std::string& entry : own) skipped.insert(entry.substr(0, entry.find('=')));
  std::vector<std::string> environment = own;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (skipped.count(text.substr(0, text.find('='))) == 0) environment.push_back(text);
  }
  return environment;
}

std::string end_in_words(const RankDir& directory, const std::optional<RankExit>& exit) {
  if (!exit) return "the process ended unseen: its node restarted or its parent died";
  if (!exit->message.empty()) return exit->message;
  std::string words = absl::StrCat("exit code ", exit->exit_code);
  if (const int signal = exit->exit_code - 128; signal > 0 && signal < NSIG) {
    const char* name = sigabbrev_np(signal);
    words = absl::StrCat("killed by signal ", signal, name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
  }
  const std::string line = last_log_line(directory.log_path());
  return line.empty() ? words : absl::StrCat(words, "; last line: ", line);
}

}  // namespace

v1::RankStatus describe_end(const RankDir& directory, const std::optional<RankExit>& exit) {
  v1::RankStatus status;
  const Outcome outcome = read_outcome(directory.events_path());
  const bool clean = !exit || exit->exit_code == metrics::kExitFinished;
  status.set_state(v1::RankPlacement::EXITED);
  status.set_finished(outcome.finished && clean);
  int code = metrics::exit_code(v1::INTERNAL);
  if (exit) {
    code = exit->exit_code;
  } else if (outcome.finished) {
    code = metrics::kExitFinished;
  } else if (outcome.interrupted) {
    code = metrics::kExitInterrupted;
  } else if (outcome.failed) {
    code = metrics::exit_code(outcome.failure.failure_class());
  } else {
    code = 128 + SIGKILL;
  }
  status.set_exit_code(code);
  v1::FailureClass failure = metrics::failure_class(code);
  if (exit && !exit->message.empty()) failure = v1::INTERNAL;  // It never ran; the daemon says why.
  if (outcome.failed) {
    status.set_failure_class(outcome.failure.failure_class());
    status.set_message(outcome.failure.message());
  } else if (failure != v1::FAILURE_CLASS_UNSPECIFIED) {
    status.set_failure_class(failure);
    status.set_message(end_in_words(directory, exit));
  } else if (code == metrics::kExitFinished && !outcome.finished) {
    status.set_failure_class(v1::INTERNAL);
    status.set_message("exit code 0 without a word of having finished");
  }
  return status;
}

RankTable::RankTable(RankTableConfig config, const StateDir* state, Spawner* spawner, Shipper* shipper,
                     const Probe* probe, metrics::RankMetrics* rank_metrics, metrics::DaemonMetrics* daemon_metrics,
                     const Clock* clock)
    : config_(std::move(config)),
      state_(state),
      spawner_(spawner),
      shipper_(shipper),
      probe_(probe),
      rank_metrics_(rank_metrics),
      daemon_metrics_(daemon_metrics),
      clock_(clock) {}

RankTable::Rank& RankTable::insert(v1::RankPlan plan, RankDir directory) {
  const RankKey key = key_of(plan);
  Rank& rank = ranks_.try_emplace(key, std::move(plan), std::move(directory)).first->second;
  rank.status.set_state(v1::RankPlacement::ASSIGNED);
  rank_metrics_->add(*job_id(key.job), rank.plan);
  if (paces_ != nullptr) paces_->add(key, rank.directory.flight_path());
  shipper_->add(key, rank.directory);
  return rank;
}

void RankTable::adopt() {
  for (auto& [plan, directory] : state_->scan()) {
    if (const auto id = job_id(plan.job()); !id.ok()) {
      spdlog::error("{}: {}", directory.plan_path(), std::string(id.status().message()));
      continue;
    }
    Rank& rank = insert(std::move(plan), std::move(directory));
    const RankKey key = key_of(rank.plan);
    if (const auto process = rank.directory.read_process()) {
      rank.family = ProcessFamily{process->id, rank.directory.marker(), process->cgroup};
      rank.status.set_state(v1::RankPlacement::RUNNING);  // Or was: the first tick looks.
      rank.status.set_pid(process->id.pid);
      spdlog::info("{}: taken over, pid {}", to_string(key), process->id.pid);
    } else {
      set_exited(rank, false);
    }
  }
}

void RankTable::reconcile(const std::vector<v1::Assignment>& wish) {
  std::set<RankKey> named;
  for (const v1::Assignment& one : wish) named.insert(key_of(one.plan()));
  for (auto& [key, rank] : ranks_) {
    if (named.count(key) == 0) rank.abandoned = true;
  }
  for (const v1::Assignment& one : wish) {
    const RankKey key = key_of(one.plan());
    const auto found = ranks_.find(key);
    const bool stopping = one.desired() == v1::Assignment::STOP;
    if (found != ranks_.end()) {
      found->second.abandoned = false;
      if (stopping) {
        stop(found->second, milliseconds(google::protobuf::util::TimeUtil::DurationToMilliseconds(one.grace())));
      }
    } else if (stopping) {
      add_never_started(one.plan(), absl::OkStatus());
    } else if (one.desired() == v1::Assignment::RUN && starts_ && !blocked(one.plan())) {
      start(one.plan());
    }
  }
}

bool RankTable::blocked(const v1::RankPlan& plan) const {
  for (const auto& [key, rank] : ranks_) {
    const bool same_device =
        rank.plan.device().kind() == plan.device().kind() && rank.plan.device().index() == plan.device().index();
    if (same_device && !rank.clean()) return true;
    if (rank.running() && key.job == plan.job() && key.epoch != plan.epoch()) return true;
  }
  return false;
}

absl::StatusOr<RankProcess> RankTable::launch(const v1::RankPlan& plan, const RankDir& directory) {
  return spawner_->start(directory,
                         {config_.rank_program, "--plan", directory.plan_path(), "--events", directory.events_path()},
                         environment_for(plan, directory));
}

void RankTable::start(const v1::RankPlan& plan) {
  const RankKey key = key_of(plan);
  const auto directory = state_->rank_dir(key);
  if (!directory.ok()) return add_never_started(plan, directory.status());
  v1::RankPlan complete = plan;
  if (complete.threads() == 0) complete.set_threads(config_.default_threads);
  const absl::Status created = directory->create(complete);
  if (const auto use = probe_->use(plan.device()); use && created.ok()) {
    directory->write_memory_before(use->bytes).IgnoreError();  // A hint only.
  }
  const auto process = created.ok() ? launch(complete, *directory) : absl::StatusOr<RankProcess>(created);
  if (created.ok() && absl::IsUnavailable(process.status())) {
    spawner_lost_ = process.status();  // Started or not: the next daemon reads it from the directory.
    return;
  }
  Rank& rank = insert(complete, *directory);
  if (process.ok()) {
    rank.family = ProcessFamily{process->id, directory->marker(), process->cgroup};
    rank.status.set_state(v1::RankPlacement::RUNNING);
    rank.status.set_pid(process->id.pid);
    spdlog::info("{}: started, pid {}", to_string(key), process->id.pid);
    return;
  }
  const RankExit exit{kCannotStart, absl::StrCat("cannot start the rank: ", std::string(process.status().message()))};
  directory->write_exit(exit).IgnoreError();  // The disk may be the trouble; memory has it.
  set_exited(rank, true);
  rank.status.set_exit_code(exit.exit_code);
  rank.status.set_failure_class(created.ok() ? v1::INTERNAL : v1::STORAGE);
  rank.status.set_message(exit.message);
}

void RankTable::add_never_started(const v1::RankPlan& plan, const absl::Status& why) {
  Rank& rank = ranks_.try_emplace(key_of(plan), plan, RankDir("")).first->second;
  rank.never_started = true;
  rank.told = true;
  rank.status.set_state(v1::RankPlacement::EXITED);
  rank.status.set_output_shipped(true);
  rank.status.set_exit_code(why.ok() ? static_cast<int>(metrics::kExitInterrupted) : kCannotStart);
  rank.status.set_failure_class(why.ok() ? v1::FAILURE_CLASS_UNSPECIFIED : v1::INTERNAL);
  rank.status.set_message(why.ok() ? "stopped before it was started" : well_formed(std::string(why.message())));
}

void RankTable::stop(Rank& rank, milliseconds grace) {
  if (!rank.running() || rank.kill_at) return;
  spdlog::info("{}: SIGTERM to pid {}, SIGKILL in {} ms", to_string(key_of(rank.plan)), rank.status.pid(),
               grace.count());
  signal_group(*rank.family, SIGTERM);
  rank.kill_at = clock_->now() + grace;
}

absl::Status RankTable::tick() {
  absl::Status status = spawner_lost_.ok() ? spawner_->sync() : spawner_lost_;
  if (!status.ok()) return status;
  for (auto entry = ranks_.begin(); entry != ranks_.end();) {
    Rank& rank = entry->second;
    if (rank.running()) status.Update(advance(rank));
    if (!rank.running() && !rank.clean()) watch_end(rank);
    if (rank.abandoned && !rank.running() && rank.clean()) {
      forget(rank);
      entry = ranks_.erase(entry);
      continue;
    }
    if (!rank.running() && !rank.status.output_shipped()) {
      rank.status.set_output_shipped(shipper_->shipped(entry->first));
    }
    ++entry;
  }
  if (paces_ != nullptr) paces_->look();
  int running = 0, exited = 0;
  for (const auto& [key, rank] : ranks_) ++(rank.running() ? running : exited);
  daemon_metrics_->set_ranks("running", running);
  daemon_metrics_->set_ranks("exited", exited);
  return status;
}

absl::Status RankTable::advance(Rank& rank) {
  const bool leader_lives = alive(rank.family->leader);
  const bool overdue = rank.kill_at && clock_->now() >= *rank.kill_at;
  if (leader_lives && !rank.abandoned && !overdue) return absl::OkStatus();
  // What a rank leaves behind when it ends goes with it: its device must be free before anybody hears of the end.
  const std::vector<int> left = kill_members(*rank.family);
  if (!left.empty()) {
    if (!rank.killing_since) rank.killing_since = clock_->now();
    if (clock_->now() - *rank.killing_since < config_.residue_after) return absl::OkStatus();
    // It is over all the same: what is left is told of by its receipt.
    spdlog::error("{}: does not die of SIGKILL: pid {}", to_string(key_of(rank.plan)), absl::StrJoin(left, ", "));
  }
  if (absl::Status synced = spawner_->sync(); !synced.ok()) return synced;  // Now exit.json is there if it ever will.
  set_exited(rank, true);
  if (!left.empty() && alive(rank.family->leader)) {
    rank.status.set_message(absl::StrCat("does not die of SIGKILL: pid ", rank.family->leader.pid));
  }
  return absl::OkStatus();
}

void RankTable::set_exited(Rank& rank, bool count) {
  const int pid = rank.status.pid();
  const auto exit = rank.directory.read_exit();
  rank.status = describe_end(rank.directory, exit);
  rank.status.set_pid(pid);
  const bool rebooted = rank.family && rank.family->leader.boot_id != boot_id();
  if (rebooted && !exit && rank.status.failure_class() == v1::CRASH) {  // Nobody saw its end; it is not its own fault.
    rank.status.set_failure_class(v1::NODE_LOST);
    rank.status.set_message("its machine was started again");
  }
  rank.over_since = clock_->now();
  shipper_->close(key_of(rank.plan));
  if (rank.family && !rank.family->cgroup.empty()) rmdir(rank.family->cgroup.c_str());
  if (!count) return;
  daemon_metrics_->count_exit(rank.status.failure_class());
  spdlog::info("{}: ended, exit code {} {}", to_string(key_of(rank.plan)), rank.status.exit_code(),
               rank.status.message());
}

void RankTable::forget(Rank& rank) {
  if (rank.never_started) return;
  const RankKey key = key_of(rank.plan);
  shipper_->remove(key);
  if (paces_ != nullptr) paces_->remove(key);
  rank_metrics_->forget(*job_id(key.job), key.epoch, key.rank);
  state_->retire(key, rank.directory, config_.keep_finished);
}

std::optional<RankDir> RankTable::directory(const RankKey& key) const {
  const auto found = ranks_.find(key);
  if (found == ranks_.end() || found->second.never_started) return std::nullopt;
  return found->second.directory;
}

std::vector<v1::RankStatus> RankTable::statuses() const {
  std::vector<v1::RankStatus> all;
  for (const auto& [key, rank] : ranks_) {
    v1::RankStatus& status = all.emplace_back(rank.status);
    status.set_job(key.job);
    status.set_epoch(key.epoch);
    status.set_rank(key.rank);
    if (paces_ == nullptr || !rank.running()) continue;
    if (const auto pace = paces_->pace(key)) *status.mutable_pace() = *pace;
  }
  return all;
}

milliseconds RankTable::stop_all(milliseconds grace) {
  milliseconds longest(0);
  for (auto& [key, rank] : ranks_) {
    if (!rank.running()) continue;
    const uint32_t own = rank.plan.spec().checkpoint().stop_grace_seconds();
    const milliseconds its = own > 0 ? std::chrono::seconds(own) : grace;
    stop(rank, its);
    longest = std::max(longest, its);
  }
  return longest;
}

bool RankTable::all_over() const {
  for (const auto& [key, rank] : ranks_) {
    if (rank.running() || !rank.status.output_shipped()) return false;
  }
  return true;
}

bool RankTable::nothing_left() const {
  return all_over() && std::all_of(ranks_.begin(), ranks_.end(), [](const auto& one) { return one.second.clean(); });
}

}  // namespace telar::agent
