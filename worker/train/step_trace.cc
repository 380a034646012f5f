#include "worker/train/step_trace.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/trace.h"

namespace telar::train {

bool StepTrace::names(uint64_t step) const {
  const auto& steps = plan_.spec().trace().steps();
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

absl::Status StepTrace::begin(uint64_t step, Replica& replica, backend::Device& device) {
  if (!names(step)) return absl::OkStatus();
  auto timer = engine::OpTimer::create(replica.train_plan(), device);
  if (!timer.ok()) return timer.status();
  replica.observe_next_step(**timer);
  timers_[step] = *std::move(timer);
  return absl::OkStatus();
}

absl::Status StepTrace::finish(uint64_t step, const Replica& replica, const std::vector<std::string>& group_names) {
  const auto found = timers_.find(step);
  if (found == timers_.end()) return absl::OkStatus();
  const auto times = found->second->times();
  timers_.erase(found);
  if (!times.ok()) return times.status();
  engine::Trace trace = engine::make_trace(replica.train_program(), replica.train_plan(), *times, group_names);
  trace.rank = static_cast<int>(plan_.rank());
  trace.step = step;
  spdlog::info("{}", engine::to_line(trace));
  const std::string folder = absl::StrCat(plan_.run_dir(), "/traces/rank-", plan_.rank());
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = absl::StrCat(folder, "/trace-", step, ".json");
  std::ofstream file(path);
  file << engine::to_chrome_json(trace) << "\n";
  file.close();
  if (!file) return absl::DataLossError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace telar::train
