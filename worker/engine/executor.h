// Runs a planned program on a device, again and again.
//
// The program and plan must outlive the executor. Arenas are allocated once, in create(), and zeroed.
// Threads: one caller at a time.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/device.h"
#include "worker/engine/plan.h"

namespace telar::engine {

class Executor {
 public:
  virtual ~Executor() = default;
  // Gives an external buffer its address. Every external buffer needs one before run().
  void bind(const Tensor& external, std::byte* address) { addresses_.set(external.buffer(), address); }
  std::byte* address(const Tensor& tensor) const { return addresses_.at(tensor); }
  // All ops once; returns when they are done. The first error, with the op's name in front, ends the run; the
  // executor may not be used after one.
  virtual absl::Status run() = 0;

 protected:
  Executor(const Program& program, const Plan& plan, backend::Device& device,
           std::vector<backend::Communicator*> groups);
  absl::Status allocate_arenas();
  // INVALID_ARGUMENT if an op has nothing to run or the plan is of another program.
  absl::Status check_program() const;
  // FAILED_PRECONDITION names an external buffer without an address.
  absl::Status check_bound() const;
  // Runs the op; an error gets "op 'layer3/qkv' on lane compute: " in front.
  absl::Status run_op(OpId op, const RunContext& context, backend::Stream& stream) const;

  const Program& program_;
  const Plan& plan_;
  backend::Device& device_;
  Addresses addresses_;
  std::vector<backend::Communicator*> groups_;
  RunContext context_;

 private:
  std::array<std::unique_ptr<backend::Memory>, kMemoryClasses> arenas_;
};

// One op after another on one stream: the oracle, and the debugger's friend. `order`, when given, must be a
// topological order of the plan's edges; every such order gives the same bytes.
absl::StatusOr<std::unique_ptr<Executor>> create_sequential_executor(const Program& program, const Plan& plan,
                                                                     backend::Device& device,
                                                                     std::vector<backend::Communicator*> groups,
                                                                     std::vector<OpId> order = {});

// A stream a lane, joined by the plan's events: what training runs on.
absl::StatusOr<std::unique_ptr<Executor>> create_lane_executor(const Program& program, const Plan& plan,
                                                               backend::Device& device,
                                                               std::vector<backend::Communicator*> groups);

// The sequential executor with its eyes open, for tests: finds ops that touch bytes which they do not declare. Every op
// runs twice, each time in memory of its own where all bytes are poison but those that it declares to read; a byte
// outside the declared writes that changes, or an outcome that depends on the poison, is an INTERNAL error that names
// op, buffer and byte. External buffers are not poisoned. Only for devices whose memory the host can touch; slow.
absl::StatusOr<std::unique_ptr<Executor>> create_checking_executor(const Program& program, const Plan& plan,
                                                                   backend::Device& device,
                                                                   std::vector<backend::Communicator*> groups);

}  // namespace telar::engine
