#include "worker/train/metrics_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/published_file.h"
#include "worker/train/failure.h"

namespace telar::train {
namespace {

constexpr const char* kName = "metrics.jsonl";
constexpr size_t kMostUnwritten = 4 << 20;

// JSON knows no NaN.
nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr); }

absl::Status storage_error(int problem, const std::string& path) {
  return with_class(v1::STORAGE, absl::ErrnoToStatus(problem, absl::StrCat("cannot write ", path)));
}

// What a line is about; absent where it is none of ours. One without a step is about all of them.
std::optional<uint64_t> step_of(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end()) return 0;
  if (!step->is_number_unsigned()) return std::nullopt;
  return step->get<uint64_t>();
}

// Keeps the lines up to `step`; a torn last line of a crash goes too.
absl::Status cut_after(const std::string& run_dir, uint64_t step) {
  std::ifstream in(absl::StrCat(run_dir, "/", kName));
  if (!in) return absl::OkStatus();  // None yet.
  auto kept = PublishedFile::create(run_dir, kName);
  absl::Status status = kept.status();
  for (std::string line; status.ok() && std::getline(in, line);) {
    const auto about = step_of(line);
    if (!about || *about > step) continue;
    line += '\n';
    status = (*kept)->append(std::as_bytes(std::span(line)));
  }
  if (status.ok()) status = (*kept)->publish();
  return with_class(v1::STORAGE, status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsFile>> MetricsFile::open(const std::string& run_dir, uint64_t start_step) {
  std::error_code error;
  std::filesystem::create_directories(run_dir, error);
  if (error) return storage_error(error.value(), run_dir);
  const std::string path = absl::StrCat(run_dir, "/", kName);
  const absl::Status status = cut_after(run_dir, start_step);
  if (!status.ok()) return status;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return storage_error(errno, path);
  return std::unique_ptr<MetricsFile>(new MetricsFile(path, fd));
}

MetricsFile::~MetricsFile() {
  flush().IgnoreError();
  ::close(fd_);
}

absl::Status MetricsFile::write(const v1::StepReport& step) {
  nlohmann::ordered_json line;
  line["step"] = step.step();
  line["loss"] = number(step.loss());
  line["grad_norm"] = number(step.grad_norm());
  line["learning_rate"] = step.learning_rate();
  line["seconds"] = step.seconds();
  line["tokens_per_second"] = step.tokens_per_second();
  line["consumed_samples"] = step.consumed_samples();
  if (step.mfu() > 0) line["mfu"] = step.mfu();
  if (step.loss_scale() > 0) line["loss_scale"] = step.loss_scale();
  if (step.skipped()) line["skipped"] = true;
  for (const v1::PhaseTime& phase : step.phases()) {
    if ((phase.phase() == "data_wait" || phase.phase() == "checkpoint_stall") && phase.seconds() > 0) {
      line[phase.phase()] = phase.seconds();
    }
  }
  for (const v1::PhaseTime& part : step.account().parts()) line["account"][part.phase()] = part.seconds();
  if (step.account().has_pipeline()) {
    const v1::PipelineUse& use = step.account().pipeline();
    const double idle = use.warmup_idle_seconds() + use.steady_idle_seconds() + use.cooldown_idle_seconds();
    if (use.window_seconds() > 0) line["bubble"] = idle / use.window_seconds();
  }
  return append(line.dump());
}

absl::Status MetricsFile::write(const v1::EvalReport& eval) {
  nlohmann::ordered_json line;
  line["step"] = eval.step();
  line["eval_loss"] = number(eval.loss());
  line["eval_tokens"] = eval.tokens();
  for (const v1::SourceLoss& source : eval.sources()) line["eval_sources"][source.name()] = number(source.loss());
  return append(line.dump());
}

absl::Status MetricsFile::write(const v1::CheckpointReport& save) {
  if (save.state() == v1::CheckpointReport::STAGED) return absl::OkStatus();
  nlohmann::ordered_json line;
  line["step"] = save.step();
  line["saved"] = save.state() == v1::CheckpointReport::DURABLE;
  line["save_seconds"] = save.seconds();
  line["save_stall_seconds"] = save.stall_seconds();
  if (save.bytes() > 0) line["save_bytes"] = save.bytes();
  return append(line.dump());
}

absl::Status MetricsFile::append(const std::string& line) {
  if (waiting_.size() < kMostUnwritten) absl::StrAppend(&waiting_, line, "\n");
  return flush();
}

absl::Status MetricsFile::flush() {
  while (!waiting_.empty()) {
    const ssize_t written = ::write(fd_, waiting_.data(), waiting_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == ENOSPC || errno == EDQUOT)) return absl::OkStatus();
    if (written < 0) return storage_error(errno, path_);
    waiting_.erase(0, static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace telar::train
