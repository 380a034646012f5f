// A training step as one list of ops. List order is the meaning: what one thread would do. Everything else - edges,
// lanes, events, addresses - is derived by the planner (plan.h).
//
// Recording needs no device:
//   Tensor y = program.transient("ln1.y", DType::kBF16, {tokens, hidden}, MemoryClass::kActivations);
//   program.record("ln1", &Kernels::rms_norm, x.in(), In(), w.in(), eps, Out(), y.out(), rstd.out());
//   program.record("grads.0", dp_group, &Communicator::all_reduce, ReduceOp::kSum, bucket.inout());
// The access set is read off the argument types, so it cannot differ from the call.
#pragma once

#include <array>
#include <cassert>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "worker/backend/collectives.h"
#include "worker/backend/kernels.h"
#include "worker/engine/buffer.h"
#include "worker/engine/op.h"

namespace telar::engine {

// Marks arguments whose rows belong together: row i of what an op writes depends on row i of what it reads, and on
// arguments without the mark. So the op may be cut into ops of fewer rows (decompose.h).
template <typename T>
struct ByRows : T {
  explicit ByRows(const T& view) : T(view) {}
};
template <typename T>
ByRows<T> by_rows(const T& view) {
  return ByRows<T>(view);
}

template <typename T>
inline constexpr bool kIsByRows = false;
template <typename T>
inline constexpr bool kIsByRows<ByRows<T>> = true;

class Program {
 public:
  Program() = default;
  // Without ops, over the same buffers as another.
  explicit Program(std::vector<Buffer> buffers) : buffers_(std::move(buffers)) {}

  // --- Buffers ---
  Tensor persistent(const std::string& name, DType dtype, Shape shape, MemoryClass memory_class) {
    return add_buffer(name, dtype, shape, Lifetime::kPersistent, memory_class);
  }
  Tensor transient(const std::string& name, DType dtype, Shape shape, MemoryClass memory_class) {
    return add_buffer(name, dtype, shape, Lifetime::kTransient, memory_class);
  }
  // The executor's user binds its address before the first run. Not counted as this program's memory.
  Tensor external(const std::string& name, DType dtype, Shape shape) {
    return add_buffer(name, dtype, shape, Lifetime::kExternal, MemoryClass::kIo);
  }

  // --- Ops ---
  // Names of the ops recorded while a Scope lives start with its prefix ("layer3/"), and they count for its phase and
  // are about its portion.
  class Scope {
   public:
    Scope(Program& program, const std::string& prefix) : Scope(program, prefix, program.phase_) {}
    Scope(Program& program, const std::string& prefix, Phase phase)
        : program_(program),
          prefix_length_(program.prefix_.size()),
          phase_(program.phase_),
          portion_(program.portion_) {
      program.prefix_ += prefix;
      program.phase_ = phase;
    }
    Scope(Program& program, const std::string& prefix, Portion portion) : Scope(program, prefix) {
      program.portion_ = portion;
    }
    ~Scope() {
      program_.prefix_.resize(prefix_length_);
      program_.phase_ = phase_;
      program_.portion_ = portion_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Program& program_;
    size_t prefix_length_;
    Phase phase_;
    Portion portion_;
  };

  // A kernel, on the compute lane. `flops` is for forecasts.
  template <typename... Params, typename... Args>
  OpId record(const std::string& name, absl::Status (backend::Kernels::*method)(backend::Stream&, Params...),
              Args&&... arguments) {
    return record_kernel(name, 0.0, method, std::forward<Args>(arguments)...);
  }
  template <typename... Params, typename... Args>
  OpId record_kernel(const std::string& name, double flops,
                     absl::Status (backend::Kernels::*method)(backend::Stream&, Params...), Args&&... arguments) {
    auto packed = std::tuple<std::decay_t<Params>...>(std::forward<Args>(arguments)...);
    Op op = kernel_op(flops, method, packed);
    if constexpr ((kIsByRows<std::remove_cvref_t<Args>> || ...)) {
      static constexpr std::array<bool, sizeof...(Args)> kMarks = {kIsByRows<std::remove_cvref_t<Args>>...};
      size_t i = 0;
      std::apply([&](const auto&... argument) { (count_rows(op, argument, kMarks[i++]), ...); }, packed);
      op.cut = [flops, method, packed, rows = op.rows](const RowCut& cut) {
        auto some = packed;
        size_t at = 0;
        std::apply([&](auto&... argument) { (cut_rows(argument, kMarks[at++], cut), ...); }, some);
        return kernel_op(flops * static_cast<double>(cut.count) / static_cast<double>(rows), method, some);
      };
    }
    return add_named(name, std::move(op));
  }
  // A collective, on the lane of its group.
  template <typename... Params, typename... Args>
  OpId record(const std::string& name, GroupId group,
              absl::Status (backend::Communicator::*method)(backend::Stream&, Params...), Args&&... arguments) {
    auto packed = std::tuple<std::decay_t<Params>...>(std::forward<Args>(arguments)...);
    Op op = make_op(Lane{LaneKind::kComm, group}, packed);
    op.comm = CommCall{.kind = comm_kind(method), .group = group};
    std::apply([&](const auto&... argument) { (describe_call(*op.comm, argument), ...); }, packed);
    op.run = [method, group, packed](const RunContext& context, backend::Stream& stream) {
      if (group >= context.groups->size()) return no_such_group(group, context.groups->size());
      return std::apply(
          [&](const auto&... argument) {
            return ((*context.groups)[group]->*method)(stream, context.addresses->bind(argument)...);
          },
          packed);
    };
    return add_named(name, std::move(op));
  }
  // A copy of all bytes of `from` to `to`, on the lane kCopyOut or kCopyIn: between device memory and kHost.
  OpId record_copy(const std::string& name, LaneKind direction, In from, Out to);

  // The place of the program's gate (gate.h), of which there is one at most: on the compute lane, before what is
  // recorded there from now on.
  OpId record_gate(const std::string& name);

  // The next op recorded on `lane`, and so all that follow it there, waits for `earlier`, though no bytes say so. That
  // bounds how far lanes run ahead of each other, and with it memory: bytes that `earlier` was the last to use are free
  // for what begins behind the wait. offload.h is made of it.
  void wait_for(Lane lane, OpId earlier);

  // An op made by hand; for tests of the engine.
  OpId add_op(Op op);

  const std::vector<Buffer>& buffers() const { return buffers_; }
  const std::vector<Op>& ops() const { return ops_; }
  // "op 'layer3/qkv' (ln1.y bf16 [8192, 4096], weights bf16 [6144, 4096], ...) on lane compute", for messages.
  std::string describe(OpId op) const;

 private:
  static absl::Status no_such_group(GroupId group, size_t groups);
  Tensor add_buffer(const std::string& name, DType dtype, Shape shape, Lifetime lifetime, MemoryClass memory_class);

  OpId add_named(const std::string& name, Op op) {
    op.name = prefix_ + name;
    op.phase = phase_;
    op.portion = portion_;
    return add_op(std::move(op));
  }

  template <typename Method, typename Tuple>
  static Op kernel_op(double flops, Method method, const Tuple& packed) {
    Op op = make_op(Lane{LaneKind::kCompute, 0}, packed);
    op.cost.flops = flops;
    op.kernel = KernelId(method);
    op.run = [method, packed](const RunContext& context, backend::Stream& stream) {
      return std::apply(
          [&](const auto&... argument) {
            return (context.device->kernels().*method)(stream, context.addresses->bind(argument)...);
          },
          packed);
    };
    return op;
  }

  template <typename Tuple>
  static Op make_op(Lane lane, const Tuple& arguments) {
    Op op;
    op.lane = lane;
    std::apply([&](const auto&... argument) { (add_access(op, argument), ...); }, arguments);
    for (const Access& access : op.accesses) {
      op.cost.bytes += static_cast<double>(access.end - access.begin) * (access.reads() && access.writes() ? 2 : 1);
    }
    return op;
  }
  template <typename T>
  static void add_access(Op& op, const T& argument) {
    if constexpr (std::is_base_of_v<backend::View, T>) {
      if (argument.buffer == backend::kNoBuffer) return;
      op.accesses.push_back({argument.buffer, argument.offset, argument.offset + argument.bytes(), T::kMode,
                             argument.dtype, argument.shape});
    } else if constexpr (std::is_same_v<T, bool>) {
      op.switches += argument ? '1' : '0';
    }
  }

  template <typename T>
  static void count_rows(Op& op, const T& argument, bool marked) {
    if constexpr (std::is_base_of_v<backend::View, T>) {
      if (!marked || argument.absent()) return;
      assert(op.rows == 0 || op.rows == argument.rows());
      op.rows = argument.rows();
    }
  }
  template <typename T>
  static void cut_rows(T& argument, bool marked, const RowCut& cut) {
    if constexpr (std::is_base_of_v<backend::View, T>) {
      if (!marked || argument.absent()) return;
      const Tensor whole(argument.buffer, argument.offset, argument.dtype, argument.shape);
      const Tensor rows = argument.buffer == cut.instead_of ? cut.read : whole.rows(cut.first, cut.count);
      argument.buffer = rows.buffer();
      argument.offset = rows.offset();
      argument.shape = rows.shape();
    }
  }

  template <typename T>
  static void describe_call(CommCall& call, const T& argument) {
    if constexpr (std::is_base_of_v<backend::View, T>) {
      if (call.elements > 0) return;  // The first counts.
      call.elements = static_cast<uint64_t>(argument.elements());
      call.dtype = argument.dtype;
    } else if constexpr (std::is_same_v<T, backend::ReduceOp>) {
      call.reduce = argument;
    } else {
      (call.peer < 0 ? call.peer : call.source) = argument;
    }
  }

  std::vector<Buffer> buffers_;
  std::vector<Op> ops_;
  std::map<Lane, std::vector<OpId>> held_;  // What the next op of each lane waits for.
  std::string prefix_;
  Phase phase_ = Phase::kOther;
  Portion portion_;
};

}  // namespace telar::engine
