#include "worker/engine/executor.h"

#include <exception>

#include "absl/strings/str_cat.h"

namespace telar::engine {

Executor::Executor(const Program& program, const Plan& plan, backend::Device& device,
                   std::vector<backend::Communicator*> groups)
    : program_(program),
      plan_(plan),
      device_(device),
      addresses_(program.buffers().size()),
      groups_(std::move(groups)) {
  context_ = {&addresses_, &device_, &groups_};
}

void Executor::bind(const Tensor& external, std::byte* address) {
  if (addresses_.base(external.buffer()) == address) return;
  addresses_.set(external.buffer(), address);
  rebound_ = true;
}

void Executor::set_gate(Gate* gate) {
  if (gate_ == gate) return;
  gate_ = gate;
  rebound_ = true;
}

absl::Status Executor::allocate_arenas() {
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    if (plan_.arena_bytes[i] == 0) continue;
    const bool pinned = static_cast<MemoryClass>(i) == MemoryClass::kHost;
    absl::StatusOr<std::unique_ptr<backend::Memory>> arena =
        pinned ? device_.allocate_pinned(plan_.arena_bytes[i]) : device_.allocate(plan_.arena_bytes[i]);
    if (!arena.ok()) {
      const std::string_view name = name_of(static_cast<MemoryClass>(i));
      return absl::Status(arena.status().code(), absl::StrCat("arena ", absl::string_view(name.data(), name.size()),
                                                              ": ", arena.status().message()));
    }
    arenas_[i] = *std::move(arena);
  }
  for (BufferId id = 0; id < program_.buffers().size(); ++id) {
    const Buffer& buffer = program_.buffers()[id];
    backend::Memory* arena = arenas_[static_cast<size_t>(buffer.memory_class)].get();
    if (buffer.lifetime == Lifetime::kExternal || arena == nullptr) continue;
    addresses_.set(id, arena->data() + plan_.offsets[id]);
  }
  return absl::OkStatus();
}

absl::Status Executor::check_program() const {
  if (plan_.ops.size() != program_.ops().size() || plan_.offsets.size() != program_.buffers().size()) {
    return absl::InvalidArgumentError("the plan was made for another program");
  }
  for (const Op& op : program_.ops()) {
    if (!op.run) return absl::InvalidArgumentError(absl::StrCat("op '", op.name, "' has nothing to run"));
  }
  return absl::OkStatus();
}

absl::Status Executor::check_bound() {
  if (!rebound_) return absl::OkStatus();
  for (BufferId id = 0; id < program_.buffers().size(); ++id) {
    const Buffer& buffer = program_.buffers()[id];
    if (buffer.lifetime == Lifetime::kExternal && buffer.bytes > 0 && addresses_.base(id) == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("external buffer '", buffer.name, "' is not bound"));
    }
  }
  rebound_ = false;
  return absl::OkStatus();
}

absl::Status Executor::run_op(OpId op, const RunContext& context, backend::Stream& stream, bool recording) const {
  OpListener* const listener = recording ? nullptr : listener_;
  if (listener != nullptr) listener->before(program_.ops()[op], good_runs() + 1);
  absl::Status status;
  try {
    status = program_.ops()[op].run(context, stream);
  } catch (const std::exception& exception) {  // A vendor's exception must not end the process.
    status = absl::InternalError(absl::StrCat("exception: ", exception.what()));
  }
  if (listener != nullptr) listener->after(program_.ops()[op], status.ok());
  return status.ok() ? status : describe(op, status);
}

absl::Status Executor::describe(OpId op, const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat(program_.describe(op), ": ", status.message()));
}

}  // namespace telar::engine
