#include "worker/agent/flight_reporter.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "common/call_deadline.h"
#include "worker/agent/process.h"
#include "worker/flight/reader.h"

namespace telar::agent {
namespace {

constexpr size_t kCalls = 64;    // Of a rank's last ones.
constexpr size_t kThreads = 64;  // Beyond these nobody reads on.
constexpr std::chrono::seconds kReportDeadline{5};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

const char* in_words(char state) {
  switch (state) {
    case 'R':
      return "running";
    case 'T':
    case 't':
      return "stopped";
    case 'D':
      return "uninterruptible";
    case 'X':
    case 'Z':
      return "gone";
    default:
      return "sleeping";
  }
}

// "gloo-loop S futex_wait_queue syscall 202" a thread. What the system does not show is left out.
std::string threads_of(int pid) {
  std::error_code problem;
  std::vector<std::string> tasks;
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator entry(absl::StrCat("/proc/", pid, "/task"), problem);
       !problem && entry != end; entry.increment(problem)) {
    tasks.push_back(entry->path().string());
  }
  std::sort(tasks.begin(), tasks.end());
  std::string text;
  for (size_t i = 0; i < std::min(tasks.size(), kThreads); ++i) {
    const std::string call = first_line(tasks[i] + "/syscall");
    absl::StrAppend(&text, first_line(tasks[i] + "/comm"), " ", std::string(1, process_state(tasks[i] + "/stat")), " ",
                    first_line(tasks[i] + "/wchan"), call.empty() ? "" : " syscall ", call.substr(0, call.find(' ')),
                    "\n");
  }
  for (char& c : text) {
    if (c != '\n' && (c < ' ' || c > '~')) c = '?';  // A thread's name may be any bytes.
  }
  return text;
}

v1::FlightEntry entry_of(const flight::Call& call) {
  v1::FlightEntry entry;
  entry.set_group(call.group);
  entry.set_sequence(call.sequence);
  entry.set_op(call.op);
  entry.set_bytes(call.bytes);
  entry.set_state(static_cast<v1::FlightEntry::State>(call.state));
  entry.set_step(call.step);
  entry.set_seconds(call.seconds);
  return entry;
}

}  // namespace

v1::FlightRecord make_flight_record(const RankDir& directory) {
  v1::FlightRecord record;
  const auto calls = flight::read_calls(directory.flight_path(), kCalls);
  if (!calls.ok()) spdlog::warn("{}", std::string(calls.status().message()));
  if (calls.ok()) {
    std::set<std::string> told;  // Groups; a large one in each entry would be most of the record.
    for (const flight::Call& call : *calls) {
      v1::FlightEntry& entry = *record.add_entries() = entry_of(call);
      if (!told.insert(call.group).second) continue;
      for (const uint32_t rank : call.ranks) entry.add_ranks(rank);
    }
  }
  const auto process = directory.read_process();
  if (!process || !alive(process->id)) {
    record.set_process("gone");
    return record;
  }
  record.set_process(in_words(process_state(absl::StrCat("/proc/", process->id.pid, "/stat"))));
  record.set_stacks(threads_of(process->id.pid));
  return record;
}

FlightReporter::FlightReporter(const Line<v1::Cluster>* line, std::string node)
    : line_(line), node_(std::move(node)), thread_([this] { run(); }) {}

FlightReporter::~FlightReporter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (in_flight_ != nullptr) in_flight_->TryCancel();
  }
  wake_.notify_all();
  thread_.join();
}

void FlightReporter::wish(const RankKey& key, const RankDir& directory) {
  const std::lock_guard lock(mutex_);
  wishes_.try_emplace(key, directory);
  wake_.notify_all();
}

void FlightReporter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !wishes_.empty(); });
    if (stopping_) return;
    const auto [key, directory] = *wishes_.begin();
    lock.unlock();
    report(key, directory);
    lock.lock();
    wishes_.erase(key);  // What was wished for meanwhile was this.
  }
}

void FlightReporter::report(const RankKey& key, const RankDir& directory) {
  v1::ReportFlightRequest request;
  request.set_node(node_);
  request.set_job(key.job);
  request.set_epoch(key.epoch);
  request.set_rank(key.rank);
  *request.mutable_record() = make_flight_record(directory);
  grpc::ClientContext context;
  const CallDeadline deadline(context, kReportDeadline);
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    in_flight_ = &context;
  }
  v1::ReportFlightResponse response;
  const grpc::Status status = deadline.told(line_->stub()->ReportFlight(&context, request, &response));
  const std::lock_guard lock(mutex_);
  in_flight_ = nullptr;
  if (status.ok()) {
    spdlog::info("{}: its gang hangs; sent its last {} calls, process {}", to_string(key),
                 request.record().entries_size(), request.record().process());
  } else {
    spdlog::warn("{}: flight record not taken: {}", to_string(key), status.error_message());
  }
}

}  // namespace telar::agent
