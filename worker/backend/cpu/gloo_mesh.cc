#include "worker/backend/cpu/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace telar::backend::cpu {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPulse{100};
constexpr uint64_t kTripwireSlot = 0;  // No other message uses it.

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

// Where each peer reaches this rank: every peer has a socket of its own. A record a peer: its rank, then the address.
std::string encode_addresses(gloo::transport::Context& context, const std::vector<int>& peers) {
  std::string records;
  for (int peer : peers) {
    const std::vector<char> address = context.getPair(peer)->address().bytes();
    records.append(reinterpret_cast<const char*>(&peer), sizeof(peer));
    records.append(address.begin(), address.end());
  }
  return records;
}

// The address that the rank of `records` gave `rank`; empty if it gave none.
std::vector<char> find_address(const std::string& records, int rank, size_t address_bytes) {
  const size_t record_bytes = sizeof(rank) + address_bytes;
  for (size_t at = 0; at + record_bytes <= records.size(); at += record_bytes) {
    if (std::memcmp(records.data() + at, &rank, sizeof(rank)) != 0) continue;
    const char* const address = records.data() + at + sizeof(rank);
    return std::vector<char>(address, address + address_bytes);
  }
  return {};
}

using Context = std::shared_ptr<gloo::transport::Context>;

absl::Status connect_pairs(KeyValueStore& store, const GangOptions& options, const std::vector<int>& peers,
                           gloo::transport::Context& context, GlooMesh::Clock::time_point deadline) {
  const auto key_of = [&](int rank) { return absl::StrCat("communicator/", options.name, "/", rank); };
  for (int peer : peers) context.createPair(peer);
  absl::Status status = store.put(key_of(options.rank), encode_addresses(context, peers));
  if (!status.ok()) return status;
  std::vector<std::string> keys;
  for (int peer : peers) keys.push_back(key_of(peer));
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - GlooMesh::Clock::now());
  const auto records = store.get(keys, std::max(left, milliseconds(0)));
  if (!records.ok()) return records.status();
  if (records->size() != keys.size()) {
    return absl::InternalError(absl::StrCat("the store gave ", records->size(), " values for ", keys.size(), " keys"));
  }
  for (size_t i = 0; i < peers.size(); ++i) {
    gloo::transport::Pair& pair = *context.getPair(peers[i]);
    const std::vector<char> address = find_address((*records)[i], options.rank, pair.address().bytes().size());
    if (address.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", peers[i], " has no group with rank ", options.rank, ", which has one with it"));
    }
    pair.connect(address);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<GlooMesh>> GlooMesh::connect(KeyValueStore& store, const GangOptions& options,
                                                            const std::vector<int>& peers) {
  const std::string where = absl::StrCat("gang '", options.name, "', connect, rank ", options.rank, ": ");
  ignore_sigpipe();
  std::shared_ptr<gloo::transport::Device> device;
  try {
    device = create_tcp_device(options.listen_host);
  } catch (const std::exception& problem) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "cannot listen on listen_host '", options.listen_host, "': ", problem.what()));
  }
  const Clock::time_point deadline = Clock::now() + options.connect_timeout;
  try {
    const int last = peers.empty() ? options.rank : std::max(options.rank, *std::ranges::max_element(peers));
    Context context = device->createContext(options.rank, last + 1);
    // While connecting, Gloo waits for a silent peer five times as long as it is told.
    context->setTimeout(std::max(options.connect_timeout / 5, milliseconds(1)));
    const absl::Status status = connect_pairs(store, options, peers, *context, deadline);
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat(where, std::string(status.message())));
    return std::shared_ptr<GlooMesh>(new GlooMesh(std::move(context), peers));
  } catch (const std::exception& problem) {
    const std::string message = absl::StrCat(where, problem.what());
    if (Clock::now() >= deadline) return absl::DeadlineExceededError(message);
    return absl::UnavailableError(message);
  }
}

GlooMesh::GlooMesh(Context context, const std::vector<int>& peers)
    : context_(std::move(context)), peers_(peers), tripwire_bytes_(context_->size), tripwires_(context_->size) {
  for (int peer : peers_) {
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
  for (int peer : peers_) context_->getPair(peer).reset();
}

std::unique_ptr<GlooMesh::UnboundBuffer> GlooMesh::wrap(const void* data, size_t bytes) {
  return context_->createUnboundBuffer(const_cast<void*>(data), bytes);
}

void GlooMesh::fail(const absl::Status& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = cause;
  }
  for (int peer : peers_) {
    try {
      context_->getPair(peer)->close();
    } catch (const std::exception&) {
      // Every pair that could be closed is; `cause` says more.
    }
  }
  const std::lock_guard lock(mutex_);
  interrupt_all();
}

absl::Status GlooMesh::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// An interruption that is already there makes the wait return at once; without it the wait would time out, which Gloo
// answers by breaking every connection.
void GlooMesh::check_alive(int peer, milliseconds timeout) {
  if (const absl::Status status = failure(); !status.ok()) throw gloo::IoException(std::string(status.message()));
  const std::lock_guard lock(tripwire_mutex_);
  tripwires_[peer]->abortWaitRecv();
  tripwires_[peer]->waitRecv(timeout);
}

GlooMesh::Watched::Watched(GlooMesh& mesh, UnboundBuffer& buffer) : mesh_(mesh), buffer_(&buffer) {
  const std::lock_guard lock(mesh_.mutex_);
  if (!mesh_.failure_.ok()) {  // Its interruption is over.
    buffer_->abortWaitRecv();
    buffer_->abortWaitSend();
  }
  mesh_.watched_.push_back(buffer_);
}

GlooMesh::Watched::~Watched() {
  const std::lock_guard lock(mesh_.mutex_);
  std::erase(mesh_.watched_, buffer_);
}

void GlooMesh::interrupt_all() {
  for (UnboundBuffer* buffer : watched_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

void GlooMesh::pulse() {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kPulse, [this] { return stop_; })) interrupt_all();
}

}  // namespace telar::backend::cpu
