#include "worker/train/step_trace.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "worker/engine/account.h"
#include "worker/train/step_report.h"

namespace telar::train {
namespace {

// The first runs of a start are not like others: kernels are chosen, and a graph is made of the second.
constexpr uint64_t kFirstAccounted = 4;

const Clock& real_clock() {
  static const RealClock kClock;
  return kClock;
}

}  // namespace

StepTrace::StepTrace(const v1::RankPlan& plan, const parallel::Mesh& mesh, const std::vector<parallel::Group>& groups,
                     Seams seams)
    : plan_(plan),
      mesh_(mesh),
      groups_(groups),
      clock_(seams.clock == nullptr ? real_clock() : *seams.clock),
      coordinator_(seams.reference == nullptr ? dial_reference_clock(plan) : nullptr),
      reference_(seams.reference == nullptr ? coordinator_.get() : seams.reference),
      wishes_(std::move(seams.wishes_path)),
      traced_(plan.spec().trace().steps().begin(), plan.spec().trace().steps().end()) {}

bool StepTrace::is_accounted(uint64_t step) const {
  const uint64_t every = plan_.spec().trace().account_every();
  if (every == 0 || !start_step_) return false;
  const uint64_t nth = step - *start_step_;
  return nth >= kFirstAccounted && (nth - kFirstAccounted) % every == 0;
}

void StepTrace::take_wishes(uint64_t next) {
  for (const uint64_t step : wishes_.look()) {
    if (!traced_.insert(step).second || step >= next) continue;
    report(step, absl::FailedPreconditionError("it had begun when the wish came"), next);
  }
}

absl::Status StepTrace::begin(uint64_t step, Replica& replica, backend::Device& device) {
  take_wishes(step);
  if (!is_traced(step) && !is_accounted(step)) return absl::OkStatus();
  if (!start_step_) {
    report(step, absl::FailedPreconditionError("this rank runs with an executor that cannot be observed"), step);
    return absl::OkStatus();
  }
  if (idle_.empty()) {
    const auto now = [this] { return seconds_of(clock_.now()); };
    auto timer = engine::OpTimer::create(replica.train_plan(), device, now);
    if (!timer.ok()) return timer.status();
    idle_.push_back(*std::move(timer));
  }
  running_[step] = std::move(idle_.back());
  idle_.pop_back();
  replica.observe_next_step(*running_[step]);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<StepTrace::Accounted>> StepTrace::finish(uint64_t step, const Replica& replica) {
  const auto found = running_.find(step);
  if (found == running_.end()) return std::nullopt;
  const auto times = found->second->times();
  idle_.push_back(std::move(found->second));
  running_.erase(found);
  if (!times.ok()) return times.status();
  if (!trace_) {
    trace_ = engine::make_trace(replica.train_program(), replica.train_plan(), groups_, static_cast<int>(plan_.rank()));
    trace_->job = plan_.job();
    trace_->epoch = plan_.epoch();
    trace_->world = static_cast<int>(plan_.world_size());
    trace_->pp = mesh_.pp;
    trace_->dp = mesh_.dp;
    trace_->tp = mesh_.tp;
  }
  engine::set_times(*trace_, *times);
  trace_->step = step;
  if (is_traced(step)) write(step + 1);
  if (!is_accounted(step)) return std::nullopt;
  const engine::Account account = engine::account_of(*trace_);
  return Accounted{step_account(account, *trace_, mesh_.pp_size > 1, groups_), engine::waiting_share(account)};
}

void StepTrace::set_clock(engine::TraceClock& clock) {
  clock.node = plan_.node_ranks().empty() ? static_cast<int>(plan_.rank()) : static_cast<int>(plan_.node_ranks(0));
  const auto measured = reference_ == nullptr ? std::nullopt : measure_offset(*reference_, clock_);
  clock.reference = measured ? measured->reference : "";
  clock.offset = measured ? measured->offset : 0;
  clock.offset_error = measured ? measured->error : 0;
  clock.monotonic = seconds_of(clock_.now());
  clock.wall = std::chrono::duration<double>(clock_.wall().time_since_epoch()).count();
}

void StepTrace::write(uint64_t next) {
  spdlog::info("{}", engine::to_line(*trace_));
  set_clock(trace_->clock);
  report(trace_->step, write_file(), next);
}

// By rename: whoever reads one has all of it.
absl::StatusOr<uint64_t> StepTrace::write_file() const {
  const std::string folder = absl::StrCat(plan_.run_dir(), "/traces/rank-", plan_.rank());
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = absl::StrCat(folder, "/trace-", trace_->step, ".json"), draft = path + ".new";
  const std::string content = engine::to_chrome_json(*trace_) + "\n";
  std::ofstream file(draft, std::ios::binary);
  file << content;
  file.close();
  if (file) std::filesystem::rename(draft, path, error);
  if (!file || error) return absl::DataLossError(absl::StrCat("cannot write ", path));
  return content.size();
}

void StepTrace::report(uint64_t step, const absl::StatusOr<uint64_t>& bytes, uint64_t at_step) {
  v1::TraceReport& told = reports_.emplace_back();
  told.set_step(step);
  told.set_at_step(at_step);
  told.set_state(bytes.ok() ? v1::TraceReport::RECORDED : v1::TraceReport::MISSED);
  if (bytes.ok()) return told.set_bytes(*bytes);
  told.set_message(well_formed(std::string(bytes.status().message())));
  spdlog::warn("no trace of step {}: {}", step, told.message());
}

}  // namespace telar::train
