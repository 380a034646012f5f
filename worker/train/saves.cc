#include "worker/train/saves.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "worker/train/failure.h"
#include "worker/train/host_memory.h"
#include "worker/train/seconds.h"

namespace telar::train {
namespace {

constexpr int kMostWriters = 4;
constexpr uint64_t kBytesAWriter = uint64_t{256} << 20;  // Below that another thread is not worth its shard.

}  // namespace

Saves::Saves(const v1::RankPlan& plan, const SavedState& saved, Replica& replica,
             checkpoint::PatientCommitter* coordinator, Patience patience)
    : plan_(plan), saved_(saved), replica_(replica), coordinator_(coordinator), patience_(patience) {}

Saves::~Saves() {
  give_up_ = true;
  if (coordinator_ != nullptr) coordinator_->set_patience(std::chrono::milliseconds(0));
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Status Saves::prepare(uint64_t available_bytes, backend::KeyValueStore* store) {
  const v1::CheckpointSpec& spec = plan_.spec().checkpoint();
  if (!spec.async() || (!spec.at_end() && spec.every_steps() == 0)) return absl::OkStatus();
  const std::vector<parallel::Piece> share = SavedState::share(replica_.shape());
  SaveMemory wanted{.bytes = replica_.snapshot_bytes(share), .available_bytes = available_bytes};
  for (const parallel::Piece& piece : share) wanted.parameters += static_cast<uint64_t>(piece.slice.count);
  if (absl::Status room = find_host_memory(plan_, wanted, store); !room.ok()) return room;
  const absl::Status status = replica_.prepare_snapshots(share);
  if (!status.ok()) return with_class(v1::OUT_OF_MEMORY, status);
  thread_ = std::thread([this] { loop(); });
  return absl::OkStatus();
}

// On the CPU the cores are the compute threads'.
int Saves::writers() const {
  if (plan_.device().kind() != v1::ResourceSpec::GPU) return 1;
  return static_cast<int>(std::clamp<uint64_t>(host_bytes() / kBytesAWriter, 1, kMostWriters));
}

double Saves::make_room() {
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  if (!task_) return 0;
  const uint64_t step = task_->position.step;
  spdlog::warn("the save of step {} is not done, and the next one is due: training waits", step);
  if (coordinator_ != nullptr) coordinator_->set_patience(patience_.for_next);
  changed_.wait(lock, [this] { return !task_; });
  if (coordinator_ != nullptr) coordinator_->set_patience(std::nullopt);
  const double waited = seconds_since(start);
  spdlog::warn("training waited {:.3f} s for the save of step {}; saves take longer than the steps between them",
               waited, step);
  stalls_[step] += waited;
  return waited;
}

absl::Status Saves::check_end() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

absl::Status Saves::stage(uint64_t step) {
  const absl::Status status = replica_.take_snapshot();
  if (!status.ok()) return status;
  staged_ = last_staged_ = step;
  staged_at_ = Clock::now();
  return absl::OkStatus();
}

void Saves::write(const Position& position) {
  staged_ = 0;
  {
    const std::lock_guard lock(mutex_);
    task_ = Task{position, staged_at_};
  }
  changed_.notify_all();
}

void Saves::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return over_ || task_; });
    if (!task_) return;
    const Task task = *task_;
    lock.unlock();
    run(task);
    lock.lock();
    task_.reset();
    changed_.notify_all();
  }
}

void Saves::run(const Task& task) {
  Snapshot& snapshot = *replica_.snapshot();
  SavedState::Values values;
  const auto attempt = [&]() -> absl::StatusOr<SavedState::Saved> {
    if (const absl::Status copied = snapshot.copy().wait(); !copied.ok()) return copied;
    values.read = [&snapshot](Replica::Kind kind, const parallel::Piece& piece, std::span<float> out) {
      return snapshot.read(static_cast<size_t>(kind), piece, out);
    };
    values.step_state.resize(snapshot.extra().size() / sizeof(float));
    std::memcpy(values.step_state.data(), snapshot.extra().data(), snapshot.extra().size());
    values.threads = writers();
    return save(values, task);
  };
  const auto saved = attempt();
  report(saved.ok() ? v1::CheckpointReport::DURABLE : v1::CheckpointReport::FAILED, task, saved);
}

absl::StatusOr<SavedState::Saved> Saves::save(const SavedState::Values& values, const Task& task) {
  const auto staged = [this, &task] { report(v1::CheckpointReport::STAGED, task, SavedState::Saved()); };
  return saved_.save(replica_.shape(), values, task.position, staged, &give_up_);
}

void Saves::report(v1::CheckpointReport::State state, const Task& task,
                   const absl::StatusOr<SavedState::Saved>& saved) {
  v1::CheckpointReport made;
  made.set_state(state);
  made.set_step(task.position.step);
  made.set_seconds(seconds_since(task.start));
  if (saved.ok()) {
    made.set_path(saved->path);
    made.set_bytes(saved->bytes);
    for (const std::string& path : saved->removed) made.add_removed(path);
  } else {
    made.set_message(well_formed(std::string(saved.status().message())));
  }
  switch (state) {
    case v1::CheckpointReport::DURABLE:
      spdlog::info("step {}: saved {} in {:.3f} s", made.step(), made.path(), made.seconds());
      break;
    case v1::CheckpointReport::FAILED:
      spdlog::error("step {}: NOT SAVED: {}", made.step(), made.message());
      break;
    default:
      spdlog::info("step {}: all parts are on disk after {:.3f} s", made.step(), made.seconds());
      break;
  }
  const std::lock_guard lock(mutex_);
  if (state != v1::CheckpointReport::STAGED) {
    last_ = saved.status();
    last_step_ = made.step();
    if (saved.ok()) failures_ = 0;
    if (!saved.ok() && !absl::IsUnavailable(saved.status())) ++failures_;
    const bool for_good = checkpoint::untold(saved.status()) || checkpoint::fenced(saved.status());
    if (for_good) end_ = with_class(v1::STORAGE, saved.status());
  }
  reports_.push_back(std::move(made));
}

absl::Status Saves::save_now(const Position& position) {
  const Task task{position, Clock::now()};
  const auto values = SavedState::values_of(replica_);
  const auto saved = values.ok() ? save(*values, task) : absl::StatusOr<SavedState::Saved>(values.status());
  report(saved.ok() ? v1::CheckpointReport::DURABLE : v1::CheckpointReport::FAILED, task, saved);
  stalls_[position.step] += seconds_since(task.start);
  return saved.status();
}

absl::Status Saves::finish(uint64_t step) {
  const auto start = Clock::now();
  if (coordinator_ != nullptr) coordinator_->set_patience(patience_.at_end);
  std::unique_lock lock(mutex_);
  if (task_) {
    const uint64_t under_way = task_->position.step;
    changed_.wait(lock, [this] { return !task_; });
    stalls_[under_way] += seconds_since(start);
  }
  return last_step_ == step ? last_ : absl::OkStatus();
}

void Saves::finish_or_give_up(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (!task_) return;
  spdlog::info("the save of step {} is under way and gets {} s", task_->position.step,
               std::chrono::duration<double>(patience).count());
  if (coordinator_ != nullptr) coordinator_->set_patience(patience);
  if (!changed_.wait_for(lock, patience, [this] { return !task_; })) give_up_ = true;
}

absl::Status Saves::take_reports(std::vector<v1::CheckpointReport>& reports) {
  const std::lock_guard lock(mutex_);
  for (v1::CheckpointReport& report : reports_) {
    report.set_stall_seconds(stalls_[report.step()]);
    reports.push_back(std::move(report));
  }
  reports_.clear();
  if (!end_.ok()) return end_;
  if (failures_ <= kMostFailures) return absl::OkStatus();
  return with_prefix(absl::StrCat(failures_, " saves in a row failed, the last: "), with_class(v1::STORAGE, last_));
}

}  // namespace telar::train
