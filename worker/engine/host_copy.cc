#include "worker/engine/host_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace telar::engine {
namespace {

// One call's copy, so that other copies of the device (a step's inputs and results) need not wait for all of it.
constexpr uint64_t kMostAtOnce = uint64_t{32} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<HostCopy>> HostCopy::create(backend::Device& device, std::vector<Part> parts,
                                                           uint64_t bytes) {
  std::unique_ptr<HostCopy> copy(new HostCopy(std::move(parts)));
  absl::Status status;
  const auto keep = [&status](auto made, auto& at) {
    status.Update(made.status());
    if (made.ok()) at = *std::move(made);
  };
  keep(device.allocate_pinned(bytes), copy->memory_);
  keep(device.create_event(), copy->behind_);
  keep(device.create_event(), copy->copied_);
  keep(Gate::create(device), copy->gate_);
  keep(device.create_stream("host_copy", false), copy->lane_);
  if (!status.ok()) return status;
  std::memset(copy->memory_->data(), 0, bytes);  // Taken now, not page by page during the first copy.
  return copy;
}

HostCopy::~HostCopy() {
  if (lane_ != nullptr) (void)lane_->synchronize();  // Its work touches what goes before it.
}

void HostCopy::take(backend::Stream& origin) {
  origin.record(*behind_);
  lane_->wait(*behind_);
  for (const Part& part : parts_) {
    for (uint64_t at = 0; at < part.bytes; at += kMostAtOnce) {
      lane_->copy(memory_->data() + part.offset + at, part.from + at, std::min(kMostAtOnce, part.bytes - at));
    }
  }
  lane_->record(*copied_);
  gate_->close_until(*lane_);
}

}  // namespace telar::engine
