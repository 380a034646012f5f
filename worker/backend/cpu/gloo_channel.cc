#include "worker/backend/cpu/gloo_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace telar::backend::cpu {

using std::chrono::milliseconds;

namespace {

// The error of a call after another group of this rank has failed with `failure`, which may be OK.
absl::Status because_of(const absl::Status& failure) {
  if (failure.ok()) return failure;
  return absl::Status(failure.code(), absl::StrCat("given up because of ", std::string(failure.message())));
}

}  // namespace

GlooChannel::GlooChannel(std::shared_ptr<GlooMesh> mesh, const Group& group, int rank)
    : mesh_(std::move(mesh)), group_(group), rank_(rank), first_slot_(number_of(group.name) * kSlots) {}

// FNV-1a over the name, with room for the slots; 0 is the mesh's own.
uint64_t GlooChannel::number_of(const std::string& group) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : group) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001b3;
  return std::max<uint64_t>(hash % (UINT64_MAX / kSlots), 1);
}

absl::Status GlooChannel::start_call(const char* call, milliseconds timeout) {
  call_ = call;
  deadline_ = Clock::now() + timeout;
  peer_ = -1;
  return mesh_ == nullptr ? absl::OkStatus() : because_of(mesh_->failure());
}

absl::Status GlooChannel::annotate(const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat("communicator '", group_.name, "', ", call_, ", rank ", rank_, " of ",
                                                  group_.ranks.size(), ": ", std::string(status.message())));
}

// The caller throws on, and its unwinding destroys buffers: so the connections go first.
void GlooChannel::give_up(const std::exception& problem) {
  const absl::Status before = because_of(mesh_->failure());
  std::string message = before.ok() ? problem.what() : std::string(before.message());
  if (peer_ >= 0 && before.ok()) {
    const int rank = group_.ranks[peer_];
    const std::string elsewhere = rank == peer_ ? "" : absl::StrCat(", rank ", rank, " of the gang");
    message = absl::StrCat("with rank ", peer_, elsewhere, ": ", message);
  }
  const bool late = Clock::now() >= deadline_;
  const absl::StatusCode own = late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable;
  error_ = annotate(absl::Status(before.ok() ? own : before.code(), message));
  fail(error_);
}

void GlooChannel::fail(const absl::Status& annotated) {
  if (mesh_ != nullptr) mesh_->fail(annotated);
}

milliseconds GlooChannel::remaining() const {
  const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
  return std::max(left, milliseconds(1));  // Gloo takes a negative time for its default.
}

void GlooChannel::send(GlooMesh::UnboundBuffer& buffer, int peer, uint64_t slot, size_t offset, size_t bytes) {
  peer_ = peer;
  try {
    buffer.send(group_.ranks[peer], first_slot_ + slot, offset, bytes);
  } catch (const std::exception& problem) {
    give_up(problem);
    throw;
  }
}

void GlooChannel::recv(GlooMesh::UnboundBuffer& buffer, int peer, uint64_t slot, size_t offset, size_t bytes) {
  peer_ = peer;
  try {
    buffer.recv(group_.ranks[peer], first_slot_ + slot, offset, bytes);
  } catch (const std::exception& problem) {
    give_up(problem);
    throw;
  }
}

template <typename Wait>
void GlooChannel::wait(GlooMesh::UnboundBuffer& buffer, int peer, const Wait& wait_for) {
  peer_ = peer;
  try {
    const GlooMesh::Watched watched(*mesh_, buffer);
    while (!wait_for(remaining())) mesh_->check_alive(group_.ranks[peer], remaining());  // Interrupted, not there yet.
  } catch (const std::exception& problem) {
    // The message may have come before its sender went. Then it is counted by now, and waiting again finds it, at the
    // second try if an interruption was left over.
    try {
      if (wait_for(milliseconds(1)) || wait_for(milliseconds(1))) return;
    } catch (const std::exception&) {
      // It has not come.
    }
    give_up(problem);
    throw;
  }
}

void GlooChannel::wait_send(GlooMesh::UnboundBuffer& buffer, int peer) {
  wait(buffer, peer, [&](milliseconds timeout) { return buffer.waitSend(timeout); });
}

void GlooChannel::wait_recv(GlooMesh::UnboundBuffer& buffer, int peer) {
  wait(buffer, peer, [&](milliseconds timeout) { return buffer.waitRecv(timeout); });
}

}  // namespace telar::backend::cpu
