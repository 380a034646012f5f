#include "worker/train/rank_log.h"

#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "common/process.h"

namespace telar::train {
namespace {

class Sink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {  // RankLog has a mutex of its own.
 public:
  explicit Sink(RankLog& log) : log_(log) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    log_.write(line.data(), line.size());
  }
  void flush_() override {}

 private:
  RankLog& log_;
};

}  // namespace

bool RankLog::append(const char* text, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(file_, text, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      lose(size);
      return false;
    }
    text += written;
    size -= static_cast<size_t>(written);
    line_open_ = size > 0;
  }
  return true;
}

void RankLog::lose(size_t size) {
  missing_ += size;
  lost_ += size;
}

void RankLog::write(const char* text, size_t size) {
  const std::lock_guard lock(mutex_);
  if (missing_ > 0) {
    const std::string note = (line_open_ ? "\n" : "") + std::string("[telar: ") + std::to_string(missing_) +
                             " bytes of this log are missing here: the disk was full]\n";
    const uint64_t before = missing_, lost = lost_;
    if (!append(note.data(), note.size())) {
      missing_ = before;  // The note itself is no loss.
      lost_ = lost;
      return lose(size);
    }
    missing_ = 0;
  }
  append(text, size);
}

RankLog& init_rank_logging(const std::string& program) {
  static RankLog log(STDERR_FILENO);
  init_logging(program, "info");
  spdlog::default_logger()->sinks() = {std::make_shared<Sink>(log)};
  spdlog::default_logger()->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %n %v", spdlog::pattern_time_type::utc);
  return log;
}

}  // namespace telar::train
