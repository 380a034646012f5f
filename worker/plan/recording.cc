#include "worker/plan/recording.h"

#include "worker/engine/decompose.h"
#include "worker/model/parameters.h"
#include "worker/model/transformer.h"

namespace telar::plan {

using backend::Communicator;
using backend::Kernels;
using backend::ReduceOp;
using engine::Phase;
using engine::Program;
using engine::Tensor;
using parallel::Role;

void reduce_over_world(Program& program, const RunShape& shape, const std::string& name, Tensor x, ReduceOp op) {
  if (shape.groups.size(Role::kWorld) == 1) return;
  program.record(name, shape.groups.id(Role::kWorld), &Communicator::all_reduce, op, x.inout());
}

void sum_over_world(Program& program, const RunShape& shape, const std::string& name, Tensor x, bool contributes) {
  if (!contributes) program.record(name + ".none", &Kernels::fill, 0.0f, x.out());
  reduce_over_world(program, shape, name, x);
}

void count_valid(Program& program, const RunShape& shape, Tensor targets, Tensor valid) {
  program.record("valid.zero", &Kernels::fill, 0.0f, valid.out());
  // The ranks of one replica all have its targets: one counts them.
  if (shape.mesh.tp == 0 && shape.mesh.pp == 0) {
    program.record("valid.count", &Kernels::count_valid, targets.in(), valid.inout());
  }
  reduce_over_world(program, shape, "valid.reduce", valid);
}

parallel::Fp8Scales fp8_scales(Program& program, const RunShape& shape, Tensor history, bool observes) {
  if (shape.fp8.blocks) return parallel::Fp8Scales(program, parallel::Fp8Scales::Recipe::kBlocks);
  if (!shape.scales_are_delayed()) return parallel::Fp8Scales(program);
  return parallel::Fp8Scales(program, shape.fp8.delayed, history, observes);
}

parallel::Fp8Weights fp8_weights(const RunShape& shape, const parallel::Fp8Scales& scales) {
  parallel::Fp8Weights fp8{&scales, {}};
  if (!shape.uses_fp8()) return fp8;
  const std::vector<std::string> products = model::layer_products(shape.spec.model());
  const size_t of_layer = products.size() / shape.fp8.layers.size();
  for (size_t i = 0; i < products.size(); ++i) {
    if (shape.fp8.layers[i / of_layer]) fp8.products.insert(products[i]);
  }
  return fp8;
}

model::Recorder recorder(Program& program, const RunShape& shape, parallel::Weights& weights,
                         const parallel::Fp8Scales& scales, Tensor rope_table, Tensor starts, int64_t batch) {
  return {.program = program,
          .spec = shape.spec.model(),
          .weights = weights,
          .groups = shape.groups,
          .rope_table = rope_table,
          .starts = starts,
          .act = shape.act,
          .fp8 = shape.uses_fp8() ? &shape.fp8 : nullptr,
          .scales = &scales,
          .batch = batch,
          .sequence = shape.spec.batch().sequence_length(),
          .logits_bytes = shape.logits_bytes};
}

namespace {

struct Flow {
  engine::GroupId group;
  int peer;  // In the group, which has its ranks ascending.
};

Flow flow_between(const RunShape& shape, int from_stage, int to_stage) {
  const int from = shape.rank_of_stage[static_cast<size_t>(from_stage)];
  const int to = shape.rank_of_stage[static_cast<size_t>(to_stage)];
  const int other = from == shape.mesh.pp ? to : from;
  return {shape.groups.flow(from, to), other < shape.mesh.pp ? 0 : 1};
}

}  // namespace

Tensor record_recv(const model::Recorder& recorder, const RunShape& shape, const std::string& name, int from_stage,
                   int to_stage) {
  const Program::Scope scope(recorder.program, "", Phase::kPipelineComm);
  const Flow flow = flow_between(shape, from_stage, to_stage);
  const Tensor x = recorder.local_activation(name, recorder.spec.hidden());
  recorder.program.record(name, flow.group, &Communicator::recv, flow.peer, x.out());
  return x;
}

void record_send(const model::Recorder& recorder, const RunShape& shape, const std::string& name, Tensor x,
                 int from_stage, int to_stage) {
  const Program::Scope scope(recorder.program, "", Phase::kPipelineComm);
  const Flow flow = flow_between(shape, from_stage, to_stage);
  recorder.program.record(name, flow.group, &Communicator::send, flow.peer, x.in());
}

void overlap_tensor(Program& program, const RunShape& shape) {
  if (shape.mesh.tp_size == 1 || !shape.spec.parallel().overlap_tensor()) return;
  program = engine::decompose(program, {.group = shape.groups.id(parallel::Role::kTensor),
                                        .rank = shape.groups.rank(parallel::Role::kTensor),
                                        .size = shape.mesh.tp_size,
                                        .least_rows = shape.piece_rows});
}

Tensor record_forward(const model::Recorder& recorder, const RunShape& shape, Tensor ids) {
  Tensor stream;
  const int stages = static_cast<int>(shape.stages.size());
  for (int s = 0; s < stages; ++s) {
    if (!shape.has_stage(s)) continue;
    const std::string prefix = stages > 1 ? "s" + std::to_string(s) + "/" : "";
    const Program::Scope scope(recorder.program, prefix, Phase::kForward);
    if (s == 0) stream = ids;
    if (s > 0 && !shape.has_stage(s - 1)) stream = record_recv(recorder, shape, "recv", s - 1, s);
    model::Transformer transformer(shape.spec.model(), shape.stages[static_cast<size_t>(s)]);
    stream = transformer.forward(recorder, stream);
    if (s + 1 < stages && !shape.has_stage(s + 1)) record_send(recorder, shape, "send", stream, s, s + 1);
  }
  return shape.has_head() ? stream : Tensor();
}

}  // namespace telar::plan
