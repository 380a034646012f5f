#include "worker/engine/program.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace telar::engine {

std::string_view name_of(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::kWeights:
      return "weights";
    case MemoryClass::kGrads:
      return "grads";
    case MemoryClass::kOptimizer:
      return "optimizer";
    case MemoryClass::kActivations:
      return "activations";
    case MemoryClass::kCommunication:
      return "communication";
    case MemoryClass::kWorkspace:
      return "workspace";
    case MemoryClass::kIo:
      return "io";
    case MemoryClass::kHost:
      return "host";
  }
  return "?";
}

std::string Lane::to_string() const {
  switch (kind) {
    case LaneKind::kCompute:
      return "compute";
    case LaneKind::kComm:
      return absl::StrCat("comm", index);
    case LaneKind::kCopyIn:
      return "copy_in";
    case LaneKind::kCopyOut:
      return "copy_out";
  }
  return "?";
}

std::string_view name_of(CommKind kind) {
  switch (kind) {
    case CommKind::kAllReduce:
      return "all_reduce";
    case CommKind::kAllGather:
      return "all_gather";
    case CommKind::kReduceScatter:
      return "reduce_scatter";
    case CommKind::kBroadcast:
      return "broadcast";
    case CommKind::kSend:
      return "send";
    case CommKind::kRecv:
      return "recv";
    case CommKind::kExchange:
      return "exchange";
  }
  return "?";
}

std::string CommCall::to_string() const {
  std::string text(name_of(kind));
  if (kind == CommKind::kAllReduce || kind == CommKind::kReduceScatter) {
    text += reduce == backend::ReduceOp::kSum ? "(sum)" : "(max)";
  }
  if (kind == CommKind::kSend || kind == CommKind::kExchange) absl::StrAppend(&text, " to ", peer);
  if (kind == CommKind::kBroadcast || kind == CommKind::kRecv) absl::StrAppend(&text, " from ", peer);
  if (kind == CommKind::kExchange) absl::StrAppend(&text, " from ", source);
  return absl::StrCat(text, " of ", elements, " ", std::string(backend::name_of(dtype)));
}

std::string Program::describe(OpId op) const {
  const Op& what = ops_[op];
  std::string arguments;
  for (const Access& access : what.accesses) {
    if (access.shape.rank() == 0) continue;  // Made by hand.
    absl::StrAppend(&arguments, arguments.empty() ? " (" : ", ", buffers_[access.buffer].name, " ",
                    std::string(backend::name_of(access.dtype)), " ", access.shape.to_string());
  }
  if (!arguments.empty()) arguments += ")";
  return absl::StrCat("op '", what.name, "'", arguments, " on lane ", what.lane.to_string());
}

void Program::wait_for(Lane lane, OpId earlier) { held_[lane].push_back(earlier); }

OpId Program::record_copy(const std::string& name, LaneKind direction, In from, Out to) {
  auto packed = std::tuple(from, to);
  Op op = make_op(Lane{direction, 0}, packed);
  op.run = [packed](const RunContext& context, backend::Stream& stream) -> absl::Status {
    const auto& [source, target] = packed;
    if (source.bytes() != target.bytes()) {
      return absl::InvalidArgumentError(absl::StrCat(source.bytes(), " bytes to copy into ", target.bytes()));
    }
    stream.copy(context.addresses->bind(target).data, context.addresses->bind(source).data, source.bytes());
    return absl::OkStatus();
  };
  return add_named(name, std::move(op));
}

OpId Program::record_gate(const std::string& name) {
  assert(std::ranges::none_of(ops_, [](const Op& op) { return op.gate; }));
  Op op;
  op.gate = true;
  op.run = [](const RunContext&, backend::Stream&) { return absl::OkStatus(); };
  return add_named(name, std::move(op));
}

OpId Program::add_op(Op op) {
  if (const auto held = held_.find(op.lane); held != held_.end()) {
    op.after.insert(op.after.end(), held->second.begin(), held->second.end());
    held_.erase(held);
  }
  ops_.push_back(std::move(op));
  return static_cast<OpId>(ops_.size() - 1);
}

absl::Status Program::no_such_group(GroupId group, size_t groups) {
  return absl::FailedPreconditionError(
      absl::StrCat("needs communicator ", group, ", but the executor was given ", groups));
}

Tensor Program::add_buffer(const std::string& name, DType dtype, Shape shape, Lifetime lifetime,
                           MemoryClass memory_class) {
  const auto id = static_cast<BufferId>(buffers_.size());
  const Tensor tensor(id, 0, dtype, shape);
  buffers_.push_back({prefix_ + name, tensor.bytes(), lifetime, memory_class});
  return tensor;
}

}  // namespace telar::engine
