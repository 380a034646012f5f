#include "worker/train/tensorboard_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/crc32c.h"
#include "worker/train/failure.h"

namespace telar::train {
namespace {

constexpr const char* kPrefix = "events.out.tfevents.";
constexpr const char* kVersion = "brain.Event:2";  // The first whose readers heed SessionLog.
constexpr uint32_t kMaskDelta = 0xa282ead8;
constexpr int64_t kMostSeconds = 9'999'999'998;  // Names are compared as text: ten digits.

absl::Status event_file_error(int problem, const std::string& path) {
  return with_class(v1::STORAGE, absl::ErrnoToStatus(problem, absl::StrCat("cannot write ", path)));
}

void append_little_endian(std::string& text, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
}

void append_masked_crc(std::string& record, std::string_view data) {
  const uint32_t crc = crc32c(data);
  append_little_endian(record, ((crc >> 15 | crc << 17) + kMaskDelta) & 0xffffffff, 4);
}

// The time in the newest file's name; 0: there is none.
int64_t newest_second(const std::string& run_dir) {
  int64_t newest = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir, error)) {
    const std::string name = entry.path().filename().string();
    int64_t second = 0;
    if (!name.starts_with(kPrefix)) continue;
    const std::string rest = name.substr(std::char_traits<char>::length(kPrefix));
    const bool read = absl::SimpleAtoi(rest.substr(0, rest.find('.')), &second);
    if (read && second <= kMostSeconds) newest = std::max(newest, second);
  }
  return newest;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name[0] == '\0' ? "localhost" : name;
}

class Scalars {
 public:
  void add(const std::string& tag, double value) {
    tensorboard::Summary::Value& one = *event_.mutable_summary()->add_value();
    one.set_tag(tag);
    one.set_simple_value(static_cast<float>(value));
  }
  tensorboard::Event take() { return std::move(event_); }

 private:
  tensorboard::Event event_;
};

}  // namespace

std::string tensorboard_record(const std::string& data) {
  std::string record;
  append_little_endian(record, data.size(), 8);
  append_masked_crc(record, std::string(record));
  record += data;
  append_masked_crc(record, data);
  return record;
}

absl::StatusOr<std::unique_ptr<TensorBoardFile>> TensorBoardFile::open(const v1::RankPlan& plan, uint64_t start_step,
                                                                       const telar::Clock* clock) {
  const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(clock->wall().time_since_epoch()).count();
  // Another node's clock may be behind that of the start before.
  const int64_t second = std::max(now, newest_second(plan.run_dir()) + 1);
  const std::string path =
      absl::StrFormat("%s/%s%010d.%s.%d", plan.run_dir(), kPrefix, second, host_name(), plan.epoch());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return event_file_error(errno, path);
  std::unique_ptr<TensorBoardFile> file(new TensorBoardFile(path, fd, clock));
  tensorboard::Event first, start;
  first.set_file_version(kVersion);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  absl::Status status = file->append(0, first);
  if (status.ok()) status = file->append(start_step + 1, start);
  if (!status.ok()) return status;
  return file;
}

TensorBoardFile::~TensorBoardFile() { ::close(fd_); }

absl::Status TensorBoardFile::write(const v1::RankStarted& started) {
  Scalars scalars;
  for (const v1::MemoryUse& use : started.memory()) {
    if (use.bytes() > 0) scalars.add("memory/" + use.memory_class(), static_cast<double>(use.bytes()));
  }
  return append(started.start_step(), scalars.take());
}

absl::Status TensorBoardFile::write(const v1::StepReport& step) {
  Scalars scalars;
  scalars.add("train/loss", step.loss());
  scalars.add("train/grad_norm", step.grad_norm());
  scalars.add("train/learning_rate", step.learning_rate());
  if (step.loss_scale() > 0) scalars.add("train/loss_scale", step.loss_scale());
  scalars.add("train/skipped", step.skipped() ? 1 : 0);
  scalars.add("train/consumed_samples", static_cast<double>(step.consumed_samples()));
  scalars.add("throughput/step_seconds", step.seconds());
  scalars.add("throughput/tokens_per_second", step.tokens_per_second());
  if (step.mfu() > 0) scalars.add("throughput/mfu", step.mfu());
  for (const v1::PhaseTime& phase : step.phases()) scalars.add("phases/" + phase.phase(), phase.seconds());
  for (const v1::PhaseTime& part : step.account().parts()) scalars.add("account/" + part.phase(), part.seconds());
  if (const v1::PipelineUse& use = step.account().pipeline(); use.window_seconds() > 0) {
    const double idle = use.warmup_idle_seconds() + use.steady_idle_seconds() + use.cooldown_idle_seconds();
    scalars.add("pipeline/bubble", idle / use.window_seconds());
  }
  for (const v1::MemoryUse& use : step.memory()) {
    scalars.add("memory/" + use.memory_class(), static_cast<double>(use.bytes()));
  }
  return append(step.step(), scalars.take());
}

absl::Status TensorBoardFile::write(const v1::EvalReport& eval) {
  Scalars scalars;
  scalars.add("eval/loss", eval.loss());
  for (const v1::SourceLoss& source : eval.sources()) scalars.add("eval/source/" + source.name(), source.loss());
  return append(eval.step(), scalars.take());
}

absl::Status TensorBoardFile::write(const v1::CheckpointReport& save) {
  if (save.state() != v1::CheckpointReport::DURABLE) return absl::OkStatus();
  Scalars scalars;
  scalars.add("checkpoint/save_seconds", save.seconds());
  scalars.add("checkpoint/stall_seconds", save.stall_seconds());
  scalars.add("checkpoint/bytes", static_cast<double>(save.bytes()));
  return append(save.step(), scalars.take());
}

absl::Status TensorBoardFile::append(uint64_t step, tensorboard::Event event) {
  event.set_wall_time(std::chrono::duration<double>(clock_->wall().time_since_epoch()).count());
  event.set_step(static_cast<int64_t>(step));
  const std::string record = tensorboard_record(event.SerializeAsString());
  const ssize_t written = ::write(fd_, record.data(), record.size());
  if (written == static_cast<ssize_t>(record.size())) return absl::OkStatus();
  return event_file_error(written < 0 ? errno : ENOSPC, path_);  // A part of it: that was all the room.
}

}  // namespace telar::train
