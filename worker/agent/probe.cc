#include "worker/agent/probe.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include <google/protobuf/util/time_util.h>
#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "common/process.h"
#include "worker/agent/devices.h"

namespace telar::agent {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLastMoment{1'000};

google::protobuf::Timestamp to_timestamp(Clock::Wall time) {
  return google::protobuf::util::TimeUtil::MillisecondsToTimestamp(
      std::chrono::duration_cast<milliseconds>(time.time_since_epoch()).count());
}

// Worth telling only while it holds: a reset ends it.
bool is_passing(const std::string& code) { return code == "remap-pending"; }

}  // namespace

Probe::Probe(ProbeConfig config, const StateDir& state, Spawner* spawner, metrics::DeviceMetrics* metrics,
             const Clock* clock)
    : config_(std::move(config)),
      directory_(state.path() + "/probe"),
      spawner_(spawner),
      metrics_(metrics),
      clock_(clock),
      due_(clock->now()) {
  for (const v1::Device& device : config_.devices) known_.emplace_back().device = device;
  if (config_.program.empty()) return;
  // One of a killed daemon ends by itself, unless the driver holds it.
  process_ = directory_.read_process();
  kill_process();
}

Probe::~Probe() {
  kill_process();
  for (const auto end = std::chrono::steady_clock::now() + kLastMoment;
       is_dying() && std::chrono::steady_clock::now() < end;) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  if (listener_ >= 0) close(listener_);
}

void Probe::kill_process() {
  if (connection_ >= 0) close(connection_);
  connection_ = -1;
  if (!process_) return;
  if (alive(process_->id)) kill(process_->id.pid, SIGKILL);
  dying_ = std::exchange(process_, std::nullopt);
}

bool Probe::is_dying() {
  if (!dying_) return false;
  if (alive(dying_->id)) return true;
  if (!dying_->cgroup.empty()) rmdir(dying_->cgroup.c_str());
  dying_.reset();
  return false;
}

absl::Status Probe::listen() {
  if (listener_ >= 0) return absl::OkStatus();
  // No name in the file system: its path might be too long, and it would be left behind.
  socket_name_ = "telar-probe-" + random_id(20);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, socket_name_.data(), socket_name_.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + socket_name_.size());
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0 || bind(listener, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(listener, 4) != 0) {
    const int number = errno;
    if (listener >= 0) close(listener);
    return absl::UnavailableError(absl::StrCat("cannot listen for the probe: ", std::strerror(number)));
  }
  listener_ = listener;
  return absl::OkStatus();
}

void Probe::start() {
  absl::Status status = listen();
  if (status.ok()) status = directory_.create(v1::RankPlan());  // The spawner writes its files there, as for a rank.
  if (status.ok()) {
    std::vector<std::string> environment = {"TELAR_PROBE_DIR=" + directory_.path()};
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    auto process = spawner_->start(directory_,
                                   {config_.program, "--socket", socket_name_, "--library", config_.library,
                                    "--interval", std::to_string(config_.interval.count())},
                                   environment);
    status = process.status();
    if (process.ok()) process_ = *std::move(process);
  }
  if (!status.ok()) return restart(std::string(status.message()));
  due_ = clock_->now() + config_.deadline;
}

void Probe::restart(const std::string& why) {
  kill_process();
  heard_ = true;
  if (!stale_) spdlog::error("the probe of the devices: {}; nobody can tell how they are until it comes back", why);
  stale_ = true;
  metrics_->set_stale(true);
  metrics_->count_probe_restart();
  pause_ = std::clamp(pause_ * 2, config_.first_pause, config_.longest_pause);
  due_ = clock_->now() + pause_;
  for (Known& known : known_) known.counts_of_this_probe.clear();
}

void Probe::accept_probe() {
  if (listener_ < 0 || connection_ >= 0) return;
  const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (connection < 0) return;
  ucred peer{};
  socklen_t size = sizeof(peer);
  // Whoever else found the name has nothing to tell.
  const bool ours =
      getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && process_ && peer.pid == process_->id.pid;
  if (ours) {
    connection_ = connection;
  } else {
    close(connection);
  }
}

void Probe::read_reports() {
  std::string text(probe::kMostReport, '\0');
  while (connection_ >= 0) {
    const ssize_t size = recv(connection_, text.data(), text.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) return restart("it has ended");
    const auto report = probe::parse_report(text.substr(0, static_cast<size_t>(size)));
    if (!report) return restart("what it says is no report");
    take(*report);
  }
}

void Probe::tick() {
  if (config_.program.empty()) return;
  if (!process_) {
    if (!is_dying() && clock_->now() >= due_) start();
    return;
  }
  accept_probe();
  read_reports();
  if (!process_) return;
  if (connection_ < 0 && !alive(process_->id)) return restart("it does not run: see " + directory_.log_path());
  if (clock_->now() >= due_) {
    restart(absl::StrCat("no answer of the driver for ", config_.deadline.count(), " ms"));
  }
}

void Probe::take(const probe::Report& report) {
  if (stale_) spdlog::info("the probe of the devices came back");
  heard_ = true;
  stale_ = false;
  pause_ = milliseconds(0);
  due_ = clock_->now() + config_.deadline;
  metrics_->set_stale(false);
  metrics_->set_success_time(std::chrono::duration<double>(clock_->wall().time_since_epoch()).count());
  for (const probe::DeviceReading& reading : report.devices) {
    for (Known& known : known_) {
      if (known.device.index() == reading.index) take(reading, known);
    }
  }
}

void Probe::take(const probe::DeviceReading& reading, Known& known) {
  const std::string name = device_name(known.device);
  known.use = Use{reading.used_bytes, reading.pids, clock_->now()};
  known.holding = reading.holding;
  metrics_->set_used_bytes(name, reading.used_bytes);
  for (const auto& [code, count] : reading.counts) {
    uint64_t& before = known.counts_of_this_probe[code];
    if (count <= before) continue;
    known.counts[code] += count - before;
    known.last[code] = clock_->wall();
    metrics_->count_fault(name, code, count - before);
    spdlog::warn("{}: {} ({} times since the start)", name, code, known.counts[code]);
    before = count;
  }
}

std::vector<v1::DeviceHealth> Probe::health() const {
  std::vector<v1::DeviceHealth> all;
  if (!heard_) return all;
  for (const Known& known : known_) {
    v1::DeviceHealth& health = all.emplace_back();
    *health.mutable_device() = known.device;
    health.set_state(stale_                  ? v1::DeviceHealth::STALE
                     : known.holding.empty() ? v1::DeviceHealth::HEALTHY
                                             : v1::DeviceHealth::FAILED);
    if (known.use) health.set_used_bytes(known.use->bytes);
    for (const auto& [code, count] : known.counts) {
      if (is_passing(code) && known.holding.count(code) == 0) continue;
      v1::DeviceFault* fault = health.add_faults();
      fault->set_code(code);
      fault->set_count(count);
      *fault->mutable_last_time() = to_timestamp(known.last.at(code));
    }
  }
  return all;
}

std::optional<Probe::Use> Probe::use(const v1::Device& device) const {
  if (stale_) return std::nullopt;
  for (const Known& known : known_) {
    if (known.device.kind() == device.kind() && known.device.index() == device.index()) return known.use;
  }
  return std::nullopt;
}

}  // namespace telar::agent
