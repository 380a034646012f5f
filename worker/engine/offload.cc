#include "worker/engine/offload.h"

#include "absl/strings/str_cat.h"

namespace telar::engine {
namespace {

constexpr Lane kCompute{LaneKind::kCompute, 0};
constexpr Lane kIn{LaneKind::kCopyIn, 0};

}  // namespace

Parked copy_out(Program& program, const std::string& name, std::span<const Tensor> tensors) {
  Parked parked{.name = name};
  for (const Tensor& tensor : tensors) {
    const std::string part = absl::StrCat(name, ".", parked.host.size());
    const Tensor host = program.transient(part + ".host", tensor.dtype(), tensor.shape(), MemoryClass::kHost);
    parked.last_copy = program.record_copy(part + ".out", LaneKind::kCopyOut, tensor.in(), host.out());
    parked.host.push_back(host);
  }
  return parked;
}

void release(Program& program, const Parked& parked) { program.wait_for(kCompute, parked.last_copy); }

std::vector<Tensor> copy_in(Program& program, const Parked& parked) {
  // One wait for all copies: the lane's later ones are behind its first.
  const std::vector<Op>& ops = program.ops();
  for (size_t op = ops.size(); op-- > 0;) {
    if (ops[op].lane != kCompute) continue;
    program.wait_for(kIn, static_cast<OpId>(op));
    break;
  }
  std::vector<Tensor> tensors;
  for (const Tensor& host : parked.host) {
    const std::string part = absl::StrCat(parked.name, ".", tensors.size());
    const Tensor back = program.transient(part + ".back", host.dtype(), host.shape(), MemoryClass::kActivations);
    program.record_copy(part + ".in", LaneKind::kCopyIn, host.in(), back.out());
    tensors.push_back(back);
  }
  return tensors;
}

}  // namespace telar::engine
