#include "worker/forecast/estimate.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "worker/forecast/op_cost.h"
#include "worker/forecast/recorded.h"
#include "worker/forecast/replay.h"
#include "worker/parallel/schedule_generators.h"
#include "worker/plan/resolve.h"
#include "worker/plan/run_shape.h"

namespace telar::forecast {
namespace {

using engine::CommKind;
using engine::MemoryClass;
using engine::Phase;

// One replica of one pipeline rank with one micro-batch and so many layers.
v1::JobSpec small(v1::JobSpec spec, uint32_t layers) {
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  spec.mutable_model()->set_layers(layers);
  spec.mutable_batch()->set_global(spec.batch().micro());
  spec.mutable_resources()->set_devices(parallel.tensor());
  parallel.set_data(1);
  parallel.set_pipeline(1);
  parallel.set_schedule("1f1b");
  parallel.set_virtual_stages(1);
  parallel.set_zero_stage(0);
  parallel.clear_shard();
  parallel.clear_prefetch();
  parallel.clear_stage_layers();
  return spec;
}

struct Measured {
  double forward = 0, backward = 0, weight_grad = 0, activations = 0, beside = 0;
};

absl::StatusOr<Measured> measure(const v1::JobSpec& spec, const v1::ClusterShape& cluster) {
  auto rank = record_rank(plan::run_shape(spec, {.tp_size = static_cast<int>(spec.parallel().tensor())}), cluster);
  if (!rank.ok()) return rank.status();
  const std::vector<PaperRank> papers = {std::move(rank->paper)};
  const auto times = replay(papers);
  if (!times.ok()) return times.status();
  const auto busy = [&](Phase phase) { return times->ranks[0].busy[static_cast<size_t>(phase)]; };
  const auto arena = [&](MemoryClass one) { return static_cast<double>(rank->arena_bytes[static_cast<size_t>(one)]); };
  // A forward has two of the six transfers of a layer.
  const double exposed = times->ranks[0].waiting[static_cast<size_t>(Phase::kTensorComm)];
  return Measured{.forward = busy(Phase::kForward) + exposed / 3,
                  .backward = busy(Phase::kBackward) + busy(Phase::kRecompute) + exposed * 2 / 3,
                  .weight_grad = rank->stages[0].weight_grad,
                  .activations = arena(MemoryClass::kActivations),
                  .beside = arena(MemoryClass::kWorkspace) + arena(MemoryClass::kCommunication) +
                            static_cast<double>(rank->evaluation_bytes)};
}

double layer_parameters(v1::ModelSpec model) {
  model.set_layers(2);
  const auto two = static_cast<double>(plan::parameter_count(model));
  model.set_layers(1);
  return two - static_cast<double>(plan::parameter_count(model));
}

// The arithmetic of one layout.
class Layout {
 public:
  Layout(const v1::JobSpec& spec, const v1::ClusterShape& cluster, const Unit& unit,
         const std::vector<parallel::Stage>& stages)
      : spec_(spec),
        parallel_(spec.parallel()),
        rates_(cluster.rates()),
        cluster_(cluster),
        unit_(unit),
        costs_(cluster.rates(), {}),
        p_(static_cast<int>(parallel_.pipeline())),
        m_(static_cast<int>(spec.batch().global() / parallel_.data() / spec.batch().micro())),
        tp_(static_cast<int>(parallel_.tensor())),
        zero_(parallel_.data() > 1 ? static_cast<int>(parallel_.zero_stage()) : 0),
        shard_(zero_ > 0 ? parallel_.shard() : 1),
        weight_bytes_(spec.precision().compute() == v1::FP32 ? 4 : 2),
        layers_(static_cast<size_t>(p_), 0) {
    for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
      const int rank = parallel_.schedule() == "zb-v" && s >= p_ ? 2 * p_ - 1 - s : s % p_;
      layers_[static_cast<size_t>(rank)] += stages[static_cast<size_t>(s)].layers;
      if (stages[static_cast<size_t>(s)].head) last_ = rank;
    }
  }

  Estimate run() {
    for (int rank = 0; rank < p_; ++rank) count(rank);
    pipeline();
    if (parallel_.data() > 1) replicas();
    // Master and moments are read and written, gradients read twice, weights written.
    const double optimizer = most_parameters_ / shard_ * (8 * 3 + 8 + weight_bytes_) / rates_.copy_bytes_per_second();
    const double busy = m_ * (forward_ + backward_) + optimizer, all = busy + result_.pipeline + result_.replicas;
    result_.seconds = all / clock_of(rates_, busy / all);
    return result_;
  }

 private:
  // What the rank has, and whether it is the one that others wait for.
  void count(int rank) {
    const v1::ModelSpec& model = spec_.model();
    const double held = layers_[static_cast<size_t>(rank)], ends = rank == last_ ? 1 : 0;
    const double forward = held * unit_.layer.forward + ends * unit_.ends.forward;
    const double backward = held * unit_.layer.backward + ends * unit_.ends.backward;
    if (forward + backward > forward_ + backward_) {
      forward_ = forward;
      backward_ = backward;
      weight_grad_ = held * unit_.layer.weight_grad + ends * unit_.ends.weight_grad;
    }
    const double a_layer = layer_parameters(model) / tp_;
    const double table = static_cast<double>(model.vocab()) * model.hidden() / tp_;
    const int tables = (rank == 0 ? 1 : 0) + (ends > 0 && !(model.tied_head() && p_ == 1) ? 1 : 0);
    const double mine = held * a_layer + tables * table;
    const double state_bytes = weight_bytes_ == 4 ? 8 : 12;  // fp32 weights are their own masters.
    most_parameters_ = std::max(most_parameters_, mine);
    most_layers_ = std::max(most_layers_, held);
    double bytes = mine * weight_bytes_ / (zero_ == 3 ? shard_ : 1) + mine * 4 / (zero_ >= 2 ? shard_ : 1) +
                   mine * state_bytes / shard_ + unit_.working +
                   held * (unit_.layer.kept * in_flight(rank) + deferred(rank));
    // Slots for what is gathered or reduced, of each size that buckets have: layers, and tables.
    const double slots = a_layer + tables * table;
    if (zero_ >= 2) bytes += 2 * 4 * slots;
    if (zero_ == 3) bytes += (parallel_.prefetch() + 1) * weight_bytes_ * slots;
    result_.bytes = std::max(result_.bytes, bytes);
  }

  // Layers whose activations the rank keeps at most, over those that it has.
  double in_flight(int rank) const {
    const auto v = static_cast<int>(parallel_.virtual_stages());
    if (p_ == 1) return 1;
    if (parallel_.schedule() == "interleaved") {
      const int group = parallel::interleaved_group(p_, m_);
      return static_cast<double>(std::min(m_ * v, (v - 1) * group + 2 * (p_ - 1 - rank) + 1)) / v;
    }
    if (parallel_.schedule() == "1f1b") return std::min(m_, p_ - rank);
    return parallel_.schedule() == "gpipe" ? m_ : std::min(m_, p_);
  }

  // Bytes a layer that wait for weight gradients of a backward in two halves: inputs and output gradients of its
  // products, whole in their tokens where tensor ranks gathered them.
  double deferred(int rank) const {
    const bool v_shape = parallel_.schedule() == "zb-v";
    if (!v_shape && parallel_.schedule() != "zb-h1") return 0;
    const v1::ModelSpec& model = spec_.model();
    const double h = model.hidden(),
                 tokens = static_cast<double>(spec_.batch().micro()) * spec_.batch().sequence_length();
    const double qkv = (model.heads() + 2.0 * model.kv_heads()) * model.head_dim();
    const double inner = (model.architecture() == v1::LLAMA ? 2.0 : 1.0) * model.ffn();
    const double gathered = tp_ > 1 ? 4 * h : 2 * h;  // Inputs that were not gathered are kept anyway.
    const double waiting = v_shape ? 0.6 * std::min(m_, p_) : std::min(m_, rank);
    return weight_bytes_ * tokens * (gathered + (qkv + inner) / tp_) * waiting;
  }

  void pipeline() {
    if (p_ == 1) return;
    const double v = parallel_.virtual_stages(), input_grad = backward_ - weight_grad_;
    const double all = forward_ + backward_;
    double waits = (p_ - 1) * all / v;
    if (parallel_.schedule() == "zb-h1") waits = (p_ - 1) * std::max(0.0, forward_ + input_grad - weight_grad_);
    if (parallel_.schedule() == "zb-v")
      waits = (p_ - 1) * std::max(forward_, forward_ + input_grad - 2 * weight_grad_) / 2;
    // With fewer micro-batches than ranks no schedule fills the pipeline: each goes through all of it, the next one
    // behind it as soon as a stage is free.
    if (m_ < p_) waits = std::max(waits, (p_ - m_) * all + (m_ - 1) * all / v);
    const int stage = static_cast<int>(parallel_.data()) * tp_;
    const GroupLink link = link_of({"", {0, stage}}, static_cast<int>(cluster_.domain()));
    const double message = 2.0 * spec_.batch().micro() * spec_.batch().sequence_length() * spec_.model().hidden() / tp_;
    const double beside = m_ * (forward_ + backward_) * links(link).send_slowdown();
    result_.pipeline = waits + 2 * (p_ - 1) * v * costs_.call(CommKind::kSend, link, message) + beside;
  }

  void replicas() {
    backend::Group group;
    const int size = zero_ > 0 ? static_cast<int>(parallel_.shard()) : static_cast<int>(parallel_.data());
    for (int i = 0; i < size; ++i) group.ranks.push_back(i * tp_);
    const GroupLink link = link_of(group, static_cast<int>(cluster_.domain()));
    // As many calls as there are layers.
    const double calls = std::max(1.0, most_layers_), gradient = parallel_.reduce() == v1::BF16 ? 2 : 4;
    const double grads = calls * costs_.call(zero_ == 0 ? CommKind::kAllReduce : CommKind::kReduceScatter, link,
                                             gradient * most_parameters_ / calls);
    const double weights =
        zero_ == 0 ? 0
                   : calls * costs_.call(CommKind::kAllGather, link, weight_bytes_ * most_parameters_ / calls / size);
    const double all_grads = grads * (zero_ >= 2 ? m_ : 1), all_weights = weights * (zero_ == 3 ? 2.0 * m_ : 1);
    const double beside_grads = backward_ * (zero_ >= 2 ? m_ : 1);
    const double beside_weights = zero_ == 3 ? m_ * (forward_ + backward_) : forward_;
    result_.replicas =
        std::max(0.0, all_grads - beside_grads) + std::max(0.0, all_weights - beside_weights) +
        (grads + weights) / calls +
        links(link).slowdown() * (std::min(all_grads, beside_grads) + std::min(all_weights, beside_weights));
  }

  const v1::LinkRates& links(const GroupLink& link) const { return link.within ? rates_.domain() : rates_.network(); }

  const v1::JobSpec& spec_;
  const v1::ParallelSpec& parallel_;
  const v1::Rates& rates_;
  const v1::ClusterShape& cluster_;
  const Unit& unit_;
  const OpCosts costs_;
  const int p_, m_, tp_, zero_;
  const double shard_, weight_bytes_;
  std::vector<double> layers_;                           // By pipeline rank.
  int last_ = 0;                                         // The rank with the head.
  double forward_ = 0, backward_ = 0, weight_grad_ = 0;  // Of the rank with most work, a micro-batch.
  double most_parameters_ = 0, most_layers_ = 0;
  Estimate result_;
};

}  // namespace

absl::StatusOr<Unit> Estimator::unit(const v1::JobSpec& spec) {
  const UnitKey key{spec.parallel().tensor(), spec.batch().micro(), spec.memory().recompute(),
                    spec.parallel().overlap_tensor()};
  if (const auto known = units_.find(key); known != units_.end()) return known->second;
  const auto two = measure(small(spec, 2), cluster_), three = measure(small(spec, 3), cluster_);
  if (!two.ok()) return two.status();
  if (!three.ok()) return three.status();
  Unit unit;
  unit.layer = {three->forward - two->forward, three->backward - two->backward, three->weight_grad - two->weight_grad,
                three->activations - two->activations};
  unit.ends = {two->forward - 2 * unit.layer.forward, two->backward - 2 * unit.layer.backward,
               two->weight_grad - 2 * unit.layer.weight_grad, 0};
  unit.working = two->activations - 2 * unit.layer.kept + two->beside;
  return units_[key] = unit;
}

const std::vector<parallel::Stage>& Estimator::stages(const v1::JobSpec& spec) {
  const uint32_t count = spec.parallel().pipeline() * spec.parallel().virtual_stages();
  const auto [at, is_new] = stages_.try_emplace(count);
  if (is_new) at->second = plan::stages_of(spec);
  return at->second;
}

absl::StatusOr<Estimate> Estimator::estimate(const v1::JobSpec& spec) {
  const auto found = unit(spec);
  if (!found.ok()) return found.status();
  return Layout(spec, cluster_, *found, stages(spec)).run();
}

}  // namespace telar::forecast
