#include "worker/model/recorder.h"

#include "worker/model/parameters.h"

namespace telar::model {

using backend::Communicator;
using backend::Kernels;
using backend::ReduceOp;
using engine::MemoryClass;
using engine::Tensor;
using parallel::Role;

backend::VocabSlice Recorder::vocab_slice() const {
  const parallel::Range range = split(spec.vocab(), tensor_size(), tensor_rank());
  return {range.first, range.count, int64_t{spec.vocab()}};
}

Tensor Recorder::gather_tokens(const std::string& name, Tensor local) const {
  if (tensor_size() == 1) return local;
  const engine::Program::Scope scope(program, "", engine::Phase::kTensorComm);
  const Tensor whole = program.transient(name + ".gathered", local.dtype(), {tokens(), local.shape().cols()},
                                         MemoryClass::kCommunication);
  program.record(name + ".gather", groups.id(Role::kTensor), &Communicator::all_gather, local.in(), whole.out());
  return whole;
}

Tensor Recorder::scatter_tokens(const std::string& name, Tensor partial) const {
  if (tensor_size() == 1) return partial;
  const engine::Program::Scope scope(program, "", engine::Phase::kTensorComm);
  const Tensor local = local_activation(name + ".scattered", partial.shape().cols());
  program.record(name + ".scatter", groups.id(Role::kTensor), &Communicator::reduce_scatter, ReduceOp::kSum,
                 partial.in(), local.out());
  return local;
}

void Recorder::max_over_tensor_ranks(const std::string& name, Tensor x) const {
  const engine::Program::Scope scope(program, "", engine::Phase::kTensorComm);
  program.record(name + ".reduce", groups.id(Role::kTensor), &Communicator::all_reduce, ReduceOp::kMax, x.inout());
}

void Recorder::weight_gradient(std::function<void()> record) const {
  if (deferred == nullptr) return record();
  deferred->push_back(std::move(record));
}

Tensor Recorder::kept_for_weight_gradient(const std::string& name, Tensor x) const {
  if (deferred == nullptr || tensor_size() > 1) return x;  // With tensor parallelism what is read is gathered anyway.
  const Tensor kept = local_activation(name + ".kept", x.shape().cols());
  program.record(name + ".keep", &Kernels::copy, x.in(), kept.out());
  return kept;
}

}  // namespace telar::model
