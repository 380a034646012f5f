#include "worker/engine/program.h"

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

OpId Program::add_op(Op op) {
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
