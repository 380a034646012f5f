#include "worker/train/step_trace.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/account.h"
#include "worker/train/step_report.h"

namespace telar::train {
namespace {

// The first runs of a start are not like others: kernels are chosen, and a graph is made of the second.
constexpr uint64_t kFirstAccounted = 4;

}  // namespace

bool StepTrace::is_traced(uint64_t step) const {
  const auto& steps = plan_.spec().trace().steps();
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

bool StepTrace::is_accounted(uint64_t step) const {
  const uint64_t every = plan_.spec().trace().account_every();
  if (every == 0 || !start_step_) return false;
  const uint64_t nth = step - *start_step_;
  return nth >= kFirstAccounted && (nth - kFirstAccounted) % every == 0;
}

absl::Status StepTrace::begin(uint64_t step, Replica& replica, backend::Device& device) {
  if (!is_traced(step) && !is_accounted(step)) return absl::OkStatus();
  auto timer = engine::OpTimer::create(replica.train_plan(), device);
  if (!timer.ok()) return timer.status();
  replica.observe_next_step(**timer);
  timers_[step] = *std::move(timer);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<StepTrace::Accounted>> StepTrace::finish(uint64_t step, const Replica& replica) {
  const auto found = timers_.find(step);
  if (found == timers_.end()) return std::nullopt;
  const auto times = found->second->times();
  timers_.erase(found);
  if (!times.ok()) return times.status();
  std::vector<std::string> names;
  for (const parallel::Group& group : groups_) names.push_back(group.name);
  engine::Trace trace = engine::make_trace(replica.train_program(), replica.train_plan(), *times, names);
  trace.rank = static_cast<int>(plan_.rank());
  trace.step = step;
  if (is_traced(step)) {
    if (const absl::Status written = write(trace); !written.ok()) return written;
  }
  if (!is_accounted(step)) return std::nullopt;
  const engine::Account account = engine::account_of(trace);
  return Accounted{step_account(account, trace, pipeline_, groups_), engine::waiting_share(account)};
}

absl::Status StepTrace::write(const engine::Trace& trace) const {
  spdlog::info("{}", engine::to_line(trace));
  const std::string folder = absl::StrCat(plan_.run_dir(), "/traces/rank-", plan_.rank());
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = absl::StrCat(folder, "/trace-", trace.step, ".json");
  std::ofstream file(path);
  file << engine::to_chrome_json(trace) << "\n";
  file.close();
  if (!file) return absl::DataLossError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace telar::train
