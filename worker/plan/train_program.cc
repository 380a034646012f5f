// One optimizer step of one rank, recorded along its pipeline schedule.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/model/transformer.h"
#include "worker/parallel/gradients.h"
#include "worker/plan/programs.h"
#include "worker/plan/recording.h"

namespace telar::plan {
namespace {

using backend::Kernels;
using backend::ReduceOp;
using engine::DType;
using engine::MemoryClass;
using engine::Phase;
using engine::Program;
using engine::Tensor;
using parallel::Action;
using parallel::ActionKind;
using Scope = engine::Program::Scope;

// Records the schedule's actions. A stage's micro-batch is under way from its forward to the last of its backward.
class StepRecording {
 public:
  StepRecording(TrainProgram& train, const RunShape& shape, parallel::Weights& weights,
                const parallel::Fp8Scales& scales, parallel::Gradients& grads)
      : train_(train),
        shape_(shape),
        grads_(grads),
        recorder_(
            recorder(train.program, shape, weights, scales, train.rope_table, Tensor(), shape.spec.batch().micro())) {
    recorder_.grads = &grads;
    recorder_.recompute = shape.spec.memory().recompute();
    if (shape.spec.memory().offload_activations()) recorder_.offload = &offload_.emplace(train.program);
  }

  void record_all() {
    const std::vector<Action>& actions = shape_.actions;
    for (size_t i = 0; i < actions.size(); ++i) {
      if (computes(actions[i])) {
        const auto next = std::find_if(actions.begin() + static_cast<std::ptrdiff_t>(i) + 1, actions.end(), computes);
        prepare(actions[i], next == actions.end() ? nullptr : &*next);
      }
      record(actions[i]);
    }
  }

 private:
  struct Flight {
    std::unique_ptr<model::Transformer> transformer;
    bool backward_follows = false;
    Tensor starts;
    Tensor in, out, dout, din;
    model::Deferred deferred;
  };

  static bool computes(const Action& action) {
    return action.kind == ActionKind::kForward || action.kind == ActionKind::kWeightGrad || begins_backward(action);
  }
  static bool begins_backward(const Action& action) {
    return action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGrad;
  }

  // What an action can know of the next that computes on this rank.
  void prepare(const Action& action, const Action* next) {
    if (next == nullptr || !begins_backward(*next)) return;
    Flight& flight = flights_[{next->stage, next->micro_batch}];
    const bool same = next->stage == action.stage && next->micro_batch == action.micro_batch;
    if (same && action.kind == ActionKind::kForward) {
      flight.backward_follows = true;
    } else {
      const Scope scope(train_.program, prefix(*next), Phase::kBackward);
      flight.transformer->fetch(recorder_of(flight));
    }
  }

  model::Recorder recorder_of(const Flight& flight) const {
    model::Recorder recorder = recorder_;
    recorder.backward_follows = flight.backward_follows;
    recorder.starts = flight.starts;
    return recorder;
  }

  void record(const Action& action) {
    Flight& flight = flights_[{action.stage, action.micro_batch}];
    const Scope scope(train_.program, prefix(action), engine::Portion{action.stage, action.micro_batch});
    switch (action.kind) {
      case ActionKind::kForward:
        return forward(action, flight);
      case ActionKind::kBackward:
      case ActionKind::kInputGrad:
        return backward(action, flight);
      case ActionKind::kWeightGrad:
        return weight_grad(flight);
      case ActionKind::kRecvForward:
        flight.in = recv("recv_f", action.stage - 1, action.stage);
        return;
      case ActionKind::kSendForward:
        return send("send_f", flight.out, action.stage, action.stage + 1);
      case ActionKind::kRecvBackward:
        flight.dout = recv("recv_b", action.stage + 1, action.stage);
        return;
      case ActionKind::kSendBackward:
        return send("send_b", flight.din, action.stage, action.stage - 1);
      case ActionKind::kUnshard:
      case ActionKind::kReshard:
      case ActionKind::kReduceGrad:
        return;  // Gathers and reductions follow from what is read and written.
    }
  }

  // Messages from one pipeline rank to another.
  struct Flow {
    engine::Lane lane;
    std::optional<engine::OpId> before_last_recv;
    std::vector<engine::OpId> sends;
  };

  std::string prefix(const Action& action) const {
    const std::string stage = shape_.stages.size() > 1 ? "s" + std::to_string(action.stage) + "." : "";
    return stage + "mb" + std::to_string(action.micro_batch) + "/";
  }
  const parallel::Stage& stage(const Action& action) const { return shape_.stages[static_cast<size_t>(action.stage)]; }
  Tensor of_micro_batch(const Tensor& all, const Action& action) const {
    return all.slice(action.micro_batch * shape_.micro_tokens(), {shape_.micro_tokens()});
  }
  // The same micro-batch in the stage before or behind, where that is on this rank: it needs no transfer.
  Flight* neighbour(const Action& action, int step) {
    const int other = action.stage + step;
    if (other < 0 || other >= static_cast<int>(shape_.stages.size()) || !shape_.has_stage(other)) return nullptr;
    return &flights_[{other, action.micro_batch}];
  }

  // Messages and computation do not run apart without bound: else each micro-batch's messages would need memory of
  // their own, since no rank could tell that an earlier one's is free.
  Flow& flow_of(int from_stage, int to_stage) {
    const auto rank = [&](int s) { return shape_.rank_of_stage[static_cast<size_t>(s)]; };
    const engine::GroupId group = shape_.groups.flow(rank(from_stage), rank(to_stage));
    Flow& flow = flows_[group];
    flow.lane = {engine::LaneKind::kComm, group};
    return flow;
  }
  // What comes in is at most a message ahead: it waits for what was computed before the last one.
  Tensor recv(const char* name, int from_stage, int to_stage) {
    Flow& flow = flow_of(from_stage, to_stage);
    const std::optional<engine::OpId> computed = last_computed();
    if (flow.before_last_recv) train_.program.wait_for(flow.lane, *flow.before_last_recv);
    flow.before_last_recv = computed;
    return record_recv(recorder_, shape_, name, from_stage, to_stage);
  }
  // What goes out is at most so far behind that no schedule's computation waits for it: all that a pipeline can hold.
  void send(const char* name, const Tensor& x, int from_stage, int to_stage) {
    Flow& flow = flow_of(from_stage, to_stage);
    record_send(recorder_, shape_, name, x, from_stage, to_stage);
    flow.sends.push_back(static_cast<engine::OpId>(train_.program.ops().size() - 1));
    const size_t most = 2 * shape_.stages.size();
    if (flow.sends.size() <= most) return;
    train_.program.wait_for({engine::LaneKind::kCompute, 0}, flow.sends[flow.sends.size() - 1 - most]);
  }
  std::optional<engine::OpId> last_computed() const {
    for (size_t op = train_.program.ops().size(); op-- > 0;) {
      if (train_.program.ops()[op].lane.kind == engine::LaneKind::kCompute) return static_cast<engine::OpId>(op);
    }
    return std::nullopt;
  }

  void forward(const Action& action, Flight& flight) {
    const Scope scope(train_.program, "", Phase::kForward);
    if (train_.starts.defined()) flight.starts = of_micro_batch(train_.starts, action);
    if (stage(action).embedding) flight.in = of_micro_batch(train_.inputs, action);
    flight.transformer = std::make_unique<model::Transformer>(shape_.spec.model(), stage(action));
    flight.out = flight.transformer->forward(recorder_of(flight), flight.in);
    if (Flight* next = neighbour(action, 1)) next->in = flight.out;
  }

  void backward(const Action& action, Flight& flight) {
    const Scope scope(train_.program, "", Phase::kBackward);
    if (stage(action).head) {
      flight.dout = model::Head::loss_and_gradient(
          recorder_, flight.out,
          {of_micro_batch(train_.targets, action), train_.valid, train_.loss, train_.state.loss_scale()});
    }
    model::Recorder split = recorder_of(flight);
    if (action.kind == ActionKind::kInputGrad) split.deferred = &flight.deferred;
    flight.din = flight.transformer->backward(split, flight.dout, [this](int unit) { grads_.unit_done(unit); });
    if (Flight* previous = neighbour(action, -1)) previous->dout = flight.din;
  }

  void weight_grad(Flight& flight) {
    const Scope scope(train_.program, "", Phase::kBackward);
    for (const std::function<void()>& gradient : std::exchange(flight.deferred, {})) gradient();
  }

  TrainProgram& train_;
  const RunShape& shape_;
  parallel::Gradients& grads_;
  std::optional<model::Offload> offload_;
  model::Recorder recorder_;
  std::map<std::pair<int, int>, Flight> flights_;  // By stage and micro-batch.
  std::map<engine::GroupId, Flow> flows_;
};

void declare(TrainProgram& train, const RunShape& shape) {
  Program& program = train.program;
  train.weights = own(program, shape, "weights", shape.act, MemoryClass::kWeights, weight_extent(shape));
  const auto state = [&](const char* name) {
    return own(program, shape, name, DType::kF32, MemoryClass::kOptimizer, state_extent(shape));
  };
  train.state.master = shape.weights_are_masters() ? updated_weights(shape, train.weights) : state("master");
  train.state.exp_avg = state("exp_avg");
  train.state.exp_avg_sq = state("exp_avg_sq");
  const engine::Shape history = shape.fp8.delayed.history();
  train.step_state = program.persistent("step_state", DType::kF32, {backend::kStepStates + history.elements()},
                                        MemoryClass::kOptimizer);
  train.state.step = train.step_state.slice(0, {backend::kStepStates});
  if (shape.scales_are_delayed()) train.amax_history = train.step_state.slice(backend::kStepStates, history);
  if (uses_rope(shape)) {
    train.rope_table = program.persistent("rope_table", DType::kF32, rope_shape(shape), MemoryClass::kWeights);
  }
  const engine::Shape batch{shape.micro_batches, shape.micro_tokens()};
  train.inputs = program.persistent("inputs", DType::kI32, batch, MemoryClass::kIo);
  train.targets = program.persistent("targets", DType::kI32, batch, MemoryClass::kIo);
  train.starts = starts(program, shape, batch);
  train.loss = program.persistent("loss", DType::kF32, {1}, MemoryClass::kIo);
  train.valid = program.persistent("valid", DType::kF32, {1}, MemoryClass::kIo);
  train.stop = program.persistent("stop", DType::kF32, {1}, MemoryClass::kIo);
}

}  // namespace

std::vector<engine::Tensor> TrainProgram::from_host() const {
  std::vector<engine::Tensor> tensors = {inputs, targets, optimizer.step_scalars, stop};
  if (starts.defined()) tensors.push_back(starts);
  return tensors;
}

std::unique_ptr<TrainProgram> record_train(const RunShape& shape) {
  auto train = std::make_unique<TrainProgram>();
  Program& program = train->program;
  declare(*train, shape);
  const parallel::Fp8Scales scales = fp8_scales(program, shape, train->amax_history, /*observes=*/true);
  parallel::Weights weights(program, shape.layout, shape.groups, shape.sharding, train->weights,
                            fp8_weights(shape, scales));
  parallel::Gradients grads(program, shape.layout, shape.groups, shape.sharding, shape.micro_batches);
  train->grads = grads.reduced();

  // The mean is over the global batch, so its size must be known before the first gradient.
  count_valid(program, shape, train->targets, train->valid);
  reduce_over_world(program, shape, "stop.reduce", train->stop, ReduceOp::kMax);
  program.record("loss.zero", &Kernels::fill, 0.0f, train->loss.out());
  StepRecording step(*train, shape, weights, scales, grads);
  step.record_all();
  grads.finish();
  if (scales.are_delayed()) reduce_over_world(program, shape, "fp8.seen.reduce", scales.all_seen(), ReduceOp::kMax);
  sum_over_world(program, shape, "loss.reduce", train->loss, shape.has_head() && shape.mesh.tp == 0);

  const FlatTensors updated = shape.weights_are_masters() ? FlatTensors() : updated_weights(shape, train->weights);
  train->optimizer = optim::record_adamw(program, shape.spec.optimizer(), shape.spec.precision(),
                                         {shape.layout, shape.groups, shape.sharded(), train->grads, updated,
                                          [&weights](size_t bucket) { weights.updated(bucket); }},
                                         train->state);
  if (scales.are_delayed()) scales.push();  // Behind the optimizer's gate, as all that a step leaves behind.
  overlap_tensor(program, shape);
  return train;
}

}  // namespace telar::plan
