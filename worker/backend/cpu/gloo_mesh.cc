#include "worker/backend/cpu/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace telar::backend::cpu {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPulse{100};
constexpr uint64_t kTripwireSlot = 0;  // No other message uses it.

// Gloo's view of our store. Keeps one deadline for all waits, since Gloo passes a fixed 30 s for some of them, and the
// store's own error, which says more than the exception that Gloo lets through.
class RendezvousStore final : public gloo::rendezvous::Store {
 public:
  RendezvousStore(KeyValueStore& store, std::string prefix, GlooMesh::Clock::time_point deadline)
      : store_(store), prefix_(std::move(prefix)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    check(store_.put(prefix_ + key, std::string(data.begin(), data.end())));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = fetch({prefix_ + key}).front();
    return std::vector<char>(value.begin(), value.end());
  }
  void wait(const std::vector<std::string>& keys) override {
    std::vector<std::string> full;
    for (const std::string& key : keys) full.push_back(prefix_ + key);
    fetch(full);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }

  const absl::Status& status() const { return status_; }

 private:
  std::vector<std::string> fetch(const std::vector<std::string>& keys) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - GlooMesh::Clock::now());
    auto values = store_.get(keys, std::max(left, milliseconds(0)));
    check(values.status());
    if (values->size() != keys.size()) {
      check(absl::InternalError(absl::StrCat("the store gave ", values->size(), " values for ", keys.size(), " keys")));
    }
    return *std::move(values);
  }
  void check(const absl::Status& status) {
    if (status.ok()) return;
    status_ = status;
    throw gloo::IoException(std::string(status.message()));
  }

  KeyValueStore& store_;
  const std::string prefix_;
  const GlooMesh::Clock::time_point deadline_;
  absl::Status status_;
};

// Gloo's event thread spins while a caller holds the lock that it needs. With more ranks than cores each small message
// then costs a scheduler tick, unless that thread yields as SCHED_BATCH does; it inherits the policy of its maker.
std::shared_ptr<gloo::transport::Device> create_tcp_device(const std::string& host) {
  std::shared_ptr<gloo::transport::Device> device;
  std::exception_ptr problem;
  std::thread([&] {
    sched_param parameters{};
    sched_setscheduler(0, SCHED_BATCH, &parameters);  // Refused: slower, not wrong.
    try {
      gloo::transport::tcp::attr attr;
      attr.hostname = host;
      device = gloo::transport::tcp::CreateDevice(attr);
    } catch (...) {
      problem = std::current_exception();
    }
  }).join();
  if (problem) std::rethrow_exception(problem);
  return device;
}

// Gloo writes to sockets in a way that raises SIGPIPE when the peer is gone, and the default ends the process.
void ignore_sigpipe() {
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

absl::Status validate(const CommunicatorOptions& options) {
  const std::string where = absl::StrCat("communicator '", options.name, "': ");
  if (options.name.empty()) return absl::InvalidArgumentError("communicator: name is empty");
  if (options.size < 1)
    return absl::InvalidArgumentError(absl::StrCat(where, "size ", options.size, " is less than 1"));
  if (options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "rank ", options.rank, " is not in [0, size = ", options.size, ")"));
  }
  if (options.size > 1 && options.listen_host.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(where, "listen_host is empty; peers need an address"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::connect(KeyValueStore& store, const CommunicatorOptions& options) {
  if (absl::Status status = validate(options); !status.ok()) return status;
  if (options.size == 1) return std::unique_ptr<GlooMesh>();
  const std::string where =
      absl::StrCat("communicator '", options.name, "', connect, rank ", options.rank, " of ", options.size, ": ");
  ignore_sigpipe();
  std::shared_ptr<gloo::transport::Device> device;
  try {
    device = create_tcp_device(options.listen_host);
  } catch (const std::exception& problem) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "cannot listen on listen_host '", options.listen_host, "': ", problem.what()));
  }
  const Clock::time_point deadline = Clock::now() + options.connect_timeout;
  RendezvousStore rendezvous(store, absl::StrCat("communicator/", options.name, "/"), deadline);
  try {
    auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
    // While connecting, Gloo waits for a silent peer five times as long as it is told.
    context->setTimeout(std::max(options.connect_timeout / 5, milliseconds(1)));
    context->connectFullMesh(rendezvous, device);
    return std::unique_ptr<GlooMesh>(new GlooMesh(std::move(context)));
  } catch (const std::exception& problem) {
    const absl::Status& cause = rendezvous.status();
    if (!cause.ok()) return absl::Status(cause.code(), absl::StrCat(where, std::string(cause.message())));
    const std::string message = absl::StrCat(where, problem.what());
    if (Clock::now() >= deadline) return absl::DeadlineExceededError(message);
    return absl::UnavailableError(message);
  }
}

GlooMesh::GlooMesh(std::shared_ptr<gloo::Context> context)
    : context_(std::move(context)), tripwire_bytes_(context_->size), tripwires_(context_->size) {
  for (int peer = 0; peer < context_->size; ++peer) {
    if (peer == context_->rank) continue;
    tripwires_[peer] = wrap(&tripwire_bytes_[peer], 1);
    tripwires_[peer]->recv(peer, kTripwireSlot);
  }
  pulse_ = std::thread([this] { pulse(); });
}

GlooMesh::~GlooMesh() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  pulse_.join();
  // Softly, so that what was sent still arrives; and before the tripwires, which Gloo's thread may be at.
  for (int peer = 0; peer < context_->size; ++peer) context_->getPair(peer).reset();
}

void GlooMesh::pulse() {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kPulse, [this] { return stop_; })) {
    if (waiting_ == nullptr) continue;
    waiting_->abortWaitRecv();
    waiting_->abortWaitSend();
  }
}

GlooMesh::Buffer GlooMesh::wrap(const void* data, size_t bytes) {
  return context_->createUnboundBuffer(const_cast<void*>(data), bytes);
}

void GlooMesh::start_call(milliseconds timeout) {
  deadline_ = Clock::now() + timeout;
  peer_ = -1;
}

milliseconds GlooMesh::remaining() const {
  const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
  return std::max(left, milliseconds(1));  // Gloo takes a negative time for its default.
}

void GlooMesh::send(gloo::transport::UnboundBuffer& buffer, int peer, uint64_t slot, size_t offset, size_t bytes) {
  peer_ = peer;
  try {
    buffer.send(peer, slot, offset, bytes);
  } catch (...) {
    close();
    throw;
  }
}

void GlooMesh::recv(gloo::transport::UnboundBuffer& buffer, int peer, uint64_t slot, size_t offset, size_t bytes) {
  peer_ = peer;
  try {
    buffer.recv(peer, slot, offset, bytes);
  } catch (...) {
    close();
    throw;
  }
}

// Throws what broke the connection. An abort that is already there makes the wait return at once; without it the wait
// would time out, which Gloo answers by breaking every connection.
void GlooMesh::check_alive(int peer) {
  tripwires_[peer]->abortWaitRecv();
  tripwires_[peer]->waitRecv(remaining());
}

template <typename Wait>
void GlooMesh::wait(gloo::transport::UnboundBuffer& buffer, int peer, const Wait& wait_for) {
  peer_ = peer;
  const auto set_waiting = [this](gloo::transport::UnboundBuffer* waiting) {
    const std::lock_guard lock(mutex_);
    waiting_ = waiting;
  };
  const absl::Cleanup done = [&] { set_waiting(nullptr); };
  set_waiting(&buffer);
  try {
    while (!wait_for(remaining())) check_alive(peer);  // Not there yet: woken by the pulse, perhaps an old one.
  } catch (const std::exception&) {
    // The message may have come before its sender went. Then it is counted by now, and waiting again finds it, at the
    // second try if a pulse was left over.
    const std::exception_ptr broken = std::current_exception();
    set_waiting(nullptr);
    try {
      if (wait_for(milliseconds(1)) || wait_for(milliseconds(1))) return;
    } catch (const std::exception&) {
      // It has not come.
    }
    close();
    std::rethrow_exception(broken);
  }
}

void GlooMesh::wait_send(gloo::transport::UnboundBuffer& buffer, int peer) {
  wait(buffer, peer, [&](milliseconds timeout) { return buffer.waitSend(timeout); });
}

void GlooMesh::wait_recv(gloo::transport::UnboundBuffer& buffer, int peer) {
  wait(buffer, peer, [&](milliseconds timeout) { return buffer.waitRecv(timeout); });
}

void GlooMesh::close() {
  try {
    context_->closeConnections();
  } catch (const std::exception&) {
    // Every pair that could be closed is; the call that led here reports the cause.
  }
}

}  // namespace telar::backend::cpu
