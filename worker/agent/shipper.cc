#include "worker/agent/shipper.h"

#include <atomic>
#include <chrono>
#include <optional>

#include <spdlog/spdlog.h>

#include "common/call_deadline.h"

namespace telar::agent {
namespace {

using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;
constexpr milliseconds kPoll{100};
constexpr milliseconds kDeadline{10'000};
constexpr milliseconds kFirstRetry{200}, kLongestRetry{5'000};
constexpr milliseconds kRemember{1'000};  // How often shipped.json is written.
constexpr size_t kFrame = 64 << 10;       // The contract's most.
constexpr size_t kEventBatch = 32 << 10;  // Of JSON text, which is larger than the message.
constexpr size_t kMetricsBatch = 1 << 20;
constexpr int kFramesAPass = 16;  // Then the other ranks have their turn.
const grpc::Status kNothingTaken(grpc::StatusCode::UNAVAILABLE, "the coordinator took none of it");

}  // namespace

struct Shipper::Rank {
  Rank(RankKey its_key, RankDir its_directory) : key(std::move(its_key)), directory(std::move(its_directory)) {}
  const RankKey key;
  const RankDir directory;
  std::atomic<bool> closed{false};
  std::atomic<bool> shipped{false};
  std::atomic<bool> removed{false};

  // The rest is the thread's own.
  EventCursor metrics_cursor, event_cursor;
  uint64_t log_offset = 0;
  bool restored = false;                            // Offsets of a former daemon were read.
  bool over = false;                                // The coordinator takes no more of this epoch.
  std::optional<Steady::time_point> refused_since;  // For want of room.
  milliseconds pause{0};
  Steady::time_point paused_until, remembered;
};

Shipper::Shipper(const Line<v1::Cluster>* line, std::string node, ShipperConfig config, metrics::RankMetrics* metrics,
                 metrics::DaemonMetrics* daemon_metrics, std::function<void()> on_shipped)
    : line_(line),
      node_(std::move(node)),
      config_(config),
      metrics_(metrics),
      daemon_metrics_(daemon_metrics),
      on_shipped_(std::move(on_shipped)),
      thread_([this] { run(); }) {}

Shipper::~Shipper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (in_flight_ != nullptr) in_flight_->TryCancel();
  }
  wake_.notify_all();
  thread_.join();
}

void Shipper::add(const RankKey& key, const RankDir& directory) {
  const std::lock_guard lock(mutex_);
  ranks_.try_emplace(key, std::make_shared<Rank>(key, directory));
  wake_.notify_all();
}

void Shipper::close(const RankKey& key) {
  const std::lock_guard lock(mutex_);
  if (const auto found = ranks_.find(key); found != ranks_.end()) found->second->closed = true;
  wake_.notify_all();
}

bool Shipper::shipped(const RankKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = ranks_.find(key);
  return found != ranks_.end() && found->second->shipped;
}

void Shipper::remove(const RankKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = ranks_.find(key);
  if (found == ranks_.end()) return;
  found->second->removed = true;
  ranks_.erase(found);
}

void Shipper::run() {
  bool more = false;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!more) wake_.wait_for(lock, kPoll);
    if (stopping_) return;
    more = false;
    std::vector<std::shared_ptr<Rank>> turn;
    for (const auto& [key, rank] : ranks_) turn.push_back(rank);
    lock.unlock();
    for (const auto& rank : turn) {
      if (!rank->removed && !rank->shipped && pass(*rank) == Progress::kMore) more = true;
    }
    lock.lock();
  }
}

Shipper::Progress Shipper::pass(Rank& rank) {
  const bool closed = rank.closed;  // Before reading: what was written before the close is then all read.
  if (!rank.restored) {
    const ShippedOffsets offsets = rank.directory.read_shipped();
    rank.log_offset = offsets.log_offset;
    rank.event_cursor = find_line(rank.directory.events_path(), offsets.event_line);
    rank.restored = true;
  }
  if (config_.log_limit > 0) limit_log(rank.directory.log_path(), rank.log_offset, config_.log_limit);
  const Progress fed = feed_metrics(rank);
  const auto now = Steady::now();
  if (now < rank.paused_until) return fed;
  rank.paused_until = {};
  const ShippedOffsets before{rank.log_offset, rank.event_cursor.line};
  // The events first: they carry the failure's reason, and are few.
  Progress progress = rank.over ? Progress::kIdle : ship_events(rank);
  const bool stalled = rank.paused_until != Steady::time_point{};
  if (!rank.over && !stalled && ship_log(rank) == Progress::kMore) progress = Progress::kMore;
  const bool paused = rank.paused_until != Steady::time_point{};
  if (!paused) rank.pause = milliseconds{0};
  if (!paused && fed == Progress::kMore) progress = Progress::kMore;
  const bool done = closed && fed == Progress::kIdle && (rank.over || (!paused && progress == Progress::kIdle));
  const bool moved = before.log_offset != rank.log_offset || before.event_line != rank.event_cursor.line;
  if (!rank.removed && ((moved && now - rank.remembered > kRemember) || done)) {
    rank.directory.write_shipped({rank.log_offset, rank.event_cursor.line}).IgnoreError();  // A hint only.
    rank.remembered = now;
  }
  if (done) {
    rank.shipped = true;
    on_shipped_();
  }
  return progress;
}

Shipper::Progress Shipper::feed_metrics(Rank& rank) {
  const auto id = job_id(rank.key.job);
  const auto events = read_events(rank.directory.events_path(), rank.metrics_cursor, kMetricsBatch);
  PaceBook* const paces = paces_;
  for (const v1::RankEvent& event : events) {
    metrics_->observe(*id, rank.key.epoch, rank.key.rank, event);
    if (paces != nullptr) paces->observe(rank.key, event);
  }
  return events.empty() ? Progress::kIdle : Progress::kMore;
}

Shipper::Progress Shipper::ship_events(Rank& rank) {
  for (int frame = 0; frame < kFramesAPass; ++frame) {
    EventCursor next = rank.event_cursor;
    const auto events = read_events(rank.directory.events_path(), next, kEventBatch);
    if (events.empty()) return Progress::kIdle;
    v1::ReportEventsRequest request;
    request.set_node(node_);
    request.set_job(rank.key.job);
    request.set_epoch(rank.key.epoch);
    request.set_rank(rank.key.rank);
    request.set_first_line(rank.event_cursor.line);
    for (const v1::RankEvent& event : events) *request.add_events() = event;
    v1::ReportEventsResponse response;
    grpc::Status status = call(&v1::Cluster::Stub::ReportEvents, request, &response);
    if (status.ok() && response.next_line() == request.first_line()) status = kNothingTaken;
    if (!status.ok()) {
      take_failure(rank, status, "events");
      return Progress::kIdle;
    }
    rank.event_cursor =
        response.next_line() == next.line ? next : find_line(rank.directory.events_path(), response.next_line());
  }
  return Progress::kMore;
}

bool Shipper::gives_up(const Rank& rank) const {
  return rank.closed && rank.refused_since && Steady::now() - *rank.refused_since > config_.full_patience;
}

grpc::Status Shipper::ship_piece(Rank& rank, LogFile::Piece piece) {
  v1::AppendLogRequest request;
  request.set_node(node_);
  request.set_job(rank.key.job);
  request.set_epoch(rank.key.epoch);
  request.set_rank(rank.key.rank);
  request.set_offset(rank.log_offset);
  request.set_missing(piece.missing);
  *request.mutable_data() = std::move(piece.data);
  v1::AppendLogResponse response;
  const grpc::Status status = call(&v1::Cluster::Stub::AppendLog, request, &response);
  if (!status.ok()) return status;
  if (response.next_offset() == request.offset()) return kNothingTaken;
  if (request.missing() > 0 && response.next_offset() == request.offset() + request.missing()) {
    spdlog::warn("{}: {} bytes of its log are lost", to_string(rank.key), request.missing());
    daemon_metrics_->count_lost_log(request.missing());
  }
  rank.log_offset = response.next_offset();
  return status;
}

Shipper::Progress Shipper::ship_log(Rank& rank) {
  const LogFile file(rank.directory.log_path());
  for (int frame = 0; frame < kFramesAPass; ++frame) {
    LogFile::Piece piece = file.read(rank.log_offset, kFrame);
    if (piece.data.empty() && piece.missing == 0) return Progress::kIdle;
    if (gives_up(rank)) piece = {"", file.size() - rank.log_offset};
    const grpc::Status status = ship_piece(rank, std::move(piece));
    const bool full = status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    if (full && gives_up(rank)) {
      spdlog::error("{}: the coordinator has no room for its log, nor for a word about it", to_string(rank.key));
      daemon_metrics_->count_lost_log(file.size() - rank.log_offset);
      rank.over = true;
      return Progress::kIdle;
    }
    if (!full) rank.refused_since.reset();
    if (full && !rank.refused_since) rank.refused_since = Steady::now();
    if (!status.ok()) {
      take_failure(rank, status, "log");
      return Progress::kIdle;
    }
  }
  return Progress::kMore;
}

void Shipper::take_failure(Rank& rank, const grpc::Status& status, const char* what) {
  if (status.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
      status.error_code() == grpc::StatusCode::NOT_FOUND) {
    spdlog::info("{}: the coordinator takes no more {}: {}", to_string(rank.key), what, status.error_message());
    rank.over = true;
    return;
  }
  if (rank.pause.count() == 0) {
    spdlog::warn("{}: {} not shipped, trying again: {}", to_string(rank.key), what, status.error_message());
  }
  rank.pause = std::clamp(rank.pause * 2, kFirstRetry, kLongestRetry);
  rank.paused_until = Steady::now() + rank.pause;
}

template <typename Request, typename Response>
grpc::Status Shipper::call(grpc::Status (v1::Cluster::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                           const Request& request, Response* response) {
  grpc::ClientContext context;
  const CallDeadline deadline(context, kDeadline);
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return grpc::Status::CANCELLED;
    in_flight_ = &context;
  }
  const grpc::Status status = deadline.told((*line_->stub().*method)(&context, request, response));
  const std::lock_guard lock(mutex_);
  in_flight_ = nullptr;
  return status;
}

}  // namespace telar::agent
