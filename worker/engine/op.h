// One operation: what it is called, where it may run, which bytes it touches, what it costs, and how to run it.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/device.h"
#include "worker/engine/buffer.h"
#include "worker/engine/comm.h"

namespace telar::engine {

using OpId = uint32_t;
inline constexpr OpId kNoOp = 0xffffffff;

enum class LaneKind : uint8_t { kCompute, kComm, kCopyIn, kCopyOut };
// Ops of one lane run in program order; lanes run beside each other.
struct Lane {
  LaneKind kind = LaneKind::kCompute;
  uint32_t index = 0;  // kComm: the group.
  auto operator<=>(const Lane&) const = default;
  std::string to_string() const;  // "compute", "comm0", ...
};

struct Access {
  BufferId buffer = backend::kNoBuffer;
  uint64_t begin = 0;  // Bytes of the buffer, [begin, end).
  uint64_t end = 0;
  backend::AccessMode mode = backend::AccessMode::kRead;
  DType dtype = DType::kU8;  // As the op sees the bytes: what a benchmark needs to make some.
  Shape shape;
  bool writes() const { return mode != backend::AccessMode::kRead; }
  bool reads() const { return mode != backend::AccessMode::kWrite; }
};

// For forecasts and traces; nothing depends on it for being right.
struct Cost {
  double flops = 0;
  double bytes = 0;  // Device memory traffic; record() fills in the sum of the accesses.
};

// Which kernel an op calls; comparable, KernelId(&Kernels::linear). Equal for equal methods because both ABIs that we
// build for keep a pointer to a virtual method as its place in the table.
class KernelId {
 public:
  KernelId() = default;
  template <typename... Params>
  explicit KernelId(absl::Status (backend::Kernels::*method)(Params...)) {
    static_assert(sizeof(method) == sizeof(bytes_));
    std::memcpy(bytes_.data(), &method, sizeof(method));
  }
  bool operator==(const KernelId&) const = default;

 private:
  std::array<std::byte, 2 * sizeof(void*)> bytes_{};  // All zero: none.
};

// Phases of a step, for time attribution. kRecompute: ops of the forward, run again by the backward.
enum class Phase : uint8_t {
  kForward,
  kBackward,
  kRecompute,
  kGradComm,
  kWeightComm,
  kTensorComm,
  kPipelineComm,
  kOptimizer,
  kOther
};

// What an op is about; -1: of none, or of several.
struct Portion {
  int stage = -1;
  int micro_batch = -1;
};

// Where each buffer is, while a program runs.
class Addresses {
 public:
  explicit Addresses(size_t buffers) : base_(buffers, nullptr) {}
  void set(BufferId buffer, std::byte* base) { base_[buffer] = base; }
  std::byte* base(BufferId buffer) const { return base_[buffer]; }
  std::byte* at(const Tensor& tensor) const { return base_[tensor.buffer()] + tensor.offset(); }
  // A view gets its pointer; any other argument stays as it is.
  template <typename T>
  T bind(const T& argument) const {
    if constexpr (std::is_base_of_v<backend::View, T>) {
      T bound = argument;
      if (argument.buffer != backend::kNoBuffer) bound.data = base_[argument.buffer] + argument.offset;
      return bound;
    } else {
      return argument;
    }
  }

 private:
  std::vector<std::byte*> base_;
};

// What an op runs against.
struct RunContext {
  const Addresses* addresses = nullptr;
  backend::Device* device = nullptr;
  const std::vector<backend::Communicator*>* groups = nullptr;  // By GroupId.
};

// Some rows of an op: [first, first + count). What it would find in buffer `instead_of` it reads from `read`, which has
// just these rows.
struct RowCut {
  int64_t first = 0;
  int64_t count = 0;
  BufferId instead_of = backend::kNoBuffer;
  Tensor read;
};

struct Op {
  std::string name;
  Lane lane;
  Phase phase = Phase::kOther;
  Portion portion;
  std::vector<Access> accesses;
  std::vector<OpId> after;  // Earlier ops that it waits for whatever they touch: Program::wait_for().
  Cost cost;
  KernelId kernel;       // None for collectives and copies.
  std::string switches;  // Its bool arguments in order, '0' or '1': ways of one kernel that take different times.
  std::optional<CommCall> comm;  // Of a collective.
  bool gate = false;             // Runs may be held here: gate.h. There is nothing else to it.
  std::function<absl::Status(const RunContext&, backend::Stream&)> run;
  // Of a kernel with arguments by_rows(): how many rows they have, and the op for some of them, without name and phase.
  int64_t rows = 0;
  std::function<Op(const RowCut&)> cut;
};

}  // namespace telar::engine
