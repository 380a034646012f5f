#include "worker/parallel/gradients.h"

#include <algorithm>
#include <utility>

namespace telar::parallel {

using backend::Communicator;
using backend::Kernels;
using backend::ReduceOp;
using engine::DType;
using engine::MemoryClass;
using engine::Phase;
using engine::Tensor;
using Scope = engine::Program::Scope;

namespace {

constexpr size_t kSlots = 2;  // One accumulates while the other is being reduced.

bool has_unit(const Bucket& bucket, int unit) {
  return std::find(bucket.units.begin(), bucket.units.end(), unit) != bucket.units.end();
}

std::string numbered(const char* what, size_t bucket) {
  return std::string("grads.") + what + "." + std::to_string(bucket);
}

}  // namespace

Gradients::Gradients(engine::Program& program, const FlatLayout& layout, const Groups& groups, const Sharding& sharding,
                     int64_t rounds)
    : program_(program),
      layout_(layout),
      groups_(groups),
      sharding_(sharding),
      rounds_(rounds),
      states_(layout.buckets().size()) {
  const auto own = [&](FlatTensors::Extent extent) {
    return FlatTensors(program, layout, "grads", DType::kF32, MemoryClass::kGrads, FlatTensors::Owner::kProgram,
                       extent);
  };
  if (keeps_whole()) {
    whole_ = own(FlatTensors::Extent::kWhole);
    reduced_ = sharding.zero_stage == 0 ? whole_ : whole_.shards(layout);
  } else {
    reduced_ = own(FlatTensors::Extent::kShard);
  }
}

Tensor Gradients::group(const std::string& name) {
  const size_t index = layout_.index(name);
  const GroupPlace& place = layout_.place(index);
  const auto bucket = static_cast<size_t>(place.bucket);
  if (!states_[bucket].open.defined()) open(bucket);
  const Tensor gradient = states_[bucket].open.slice(place.first, layout_.groups()[index].shape);
  // Whoever did not ask adds(): nothing to add to yet, as when a tied table's head belongs to another micro-batch.
  if (layout_.groups()[index].written && !std::exchange(states_[bucket].written[name], true)) {
    program_.record("grads.zero." + name, &Kernels::fill, 0.0f, gradient.out());
  }
  return gradient;
}

bool Gradients::adds(const std::string& name) {
  const size_t index = layout_.index(name);
  const auto bucket = static_cast<size_t>(layout_.place(index).bucket);
  if (!states_[bucket].open.defined()) open(bucket);
  return !layout_.groups()[index].written || std::exchange(states_[bucket].written[name], true);
}

void Gradients::open(size_t bucket) {
  State& state = states_[bucket];
  state.open = keeps_whole() ? whole_.buckets()[bucket] : take_slot(bucket);
  state.written.clear();
  zero(bucket);
}

// A slot that no open bucket has: two taken in turn, more where a bucket stays open over others, as a tied table does.
Tensor Gradients::take_slot(size_t bucket) {
  const int64_t elements = layout_.buckets()[bucket].elements;
  Ring& ring = rings_[elements];
  size_t slot = ring.slots.size();
  if (ring.slots.size() >= kSlots) {
    for (size_t i = 0; i < ring.slots.size() && slot == ring.slots.size(); ++i) {
      const size_t candidate = (ring.next + i) % ring.slots.size();
      if (!ring.taken[candidate]) slot = candidate;
    }
  }
  if (slot == ring.slots.size()) {
    const std::string name = "grads.slot." + std::to_string(elements) + "." + std::to_string(slot);
    // Persistent, although nothing is kept: of a product that may add or write the program knows only that it may read.
    ring.slots.push_back(program_.persistent(name, DType::kF32, {elements}, MemoryClass::kGrads));
    ring.taken.push_back(false);
  }
  ring.taken[slot] = true;
  ring.next = slot + 1;
  ring.of_bucket[bucket] = slot;
  return ring.slots[slot];
}

void Gradients::release_slot(size_t bucket) {
  Ring& ring = rings_[layout_.buckets()[bucket].elements];
  ring.taken[ring.of_bucket[bucket]] = false;
}

// What no product writes: small vectors, tables, and in a slot, which held another bucket, the gaps of alignment.
// Whole buckets are never written there and so stay as their memory began: zero.
void Gradients::zero(size_t bucket) {
  const Bucket& shape = layout_.buckets()[bucket];
  const Tensor& open = states_[bucket].open;
  const auto fill = [&](const std::string& what, int64_t first, int64_t end) {
    if (first < end)
      program_.record("grads.zero." + what, &Kernels::fill, 0.0f, open.slice(first, {end - first}).out());
  };
  for (size_t g = 0; g < layout_.groups().size(); ++g) {
    const ParameterGroup& group = layout_.groups()[g];
    if (layout_.place(g).bucket != static_cast<int>(bucket) || !group.decays) continue;
    const int64_t first = layout_.place(g).first, end = first + group.shape.elements();
    const int64_t aligned = (end + FlatLayout::kAlignment - 1) / FlatLayout::kAlignment * FlatLayout::kAlignment;
    if (!group.written) fill(group.name, first, end);
    if (!keeps_whole()) fill(group.name + ".gap", end, std::min(aligned, shape.elements));
  }
  fill(std::to_string(bucket), shape.decayed, shape.elements);
}

// Where weight gradients are deferred, a head's product is not: its gradient of this micro-batch may have gone with an
// earlier one's, and the slot still holds what another bucket left there.
void Gradients::zero_unwritten(size_t bucket) {
  for (size_t g = 0; g < layout_.groups().size(); ++g) {
    const ParameterGroup& group = layout_.groups()[g];
    if (layout_.place(g).bucket != static_cast<int>(bucket) || !group.written) continue;
    if (states_[bucket].written[group.name]) continue;
    program_.record("grads.zero." + group.name, &Kernels::fill, 0.0f,
                    states_[bucket].open.slice(layout_.place(g).first, group.shape).out());
  }
}

bool Gradients::communicates(size_t bucket) const {
  const bool tied = layout_.buckets()[bucket].tied && groups_.size(Role::kTied) > 1;
  return groups_.size(Role::kShard) > 1 || groups_.size(Role::kReplicate) > 1 || tied;
}

bool Gradients::sends_next(int unit) const {
  for (size_t bucket = 0; bucket < states_.size(); ++bucket) {
    const Bucket& shape = layout_.buckets()[bucket];
    if (!has_unit(shape, unit) || !communicates(bucket)) continue;
    if (!keeps_whole() || states_[bucket].units_done >= static_cast<int64_t>(shape.units.size()) * (rounds_ - 1)) {
      return true;
    }
  }
  return false;
}

void Gradients::unit_done(int unit) {
  for (size_t bucket = 0; bucket < states_.size(); ++bucket) {
    const std::vector<int>& units = layout_.buckets()[bucket].units;
    if (!has_unit(layout_.buckets()[bucket], unit)) continue;
    State& state = states_[bucket];
    ++state.units_done;
    const auto a_round = static_cast<int64_t>(units.size());
    const bool last = state.units_done == a_round * rounds_;
    if (last || (!keeps_whole() && state.units_done % a_round == 0)) reduce(bucket, last);
  }
}

void Gradients::finish() {
  record_pending();
  const Scope scope(program_, "", Phase::kGradComm);
  for (const std::function<void()>& record : std::exchange(at_end_, {})) record();
}

void Gradients::record_pending() {
  if (pending_) std::exchange(pending_, nullptr)();
}

void Gradients::behind_reduction(std::function<void()> record) {
  record_pending();
  pending_ = std::move(record);
}

void Gradients::record_reduce(const std::string& name, Role role, Tensor x) {
  if (groups_.size(role) == 1) return;
  program_.record(name, groups_.id(role), &Communicator::all_reduce, ReduceOp::kSum, x.inout());
}

void Gradients::sum_partials(size_t bucket) {
  const Bucket& shape = layout_.buckets()[bucket];
  for (size_t i = 0; i < shape.partial.size(); ++i) {
    const PartialRange& partial = shape.partial[i];
    const Role role = partial.over == Partial::kTensor ? Role::kTensor : Role::kKeyValue;
    record_reduce(numbered("partial", bucket) + "." + std::to_string(i), role,
                  states_[bucket].open.slice(partial.range.first, {partial.range.count}));
  }
}

Tensor Gradients::on_wire(size_t bucket, Tensor values) {
  if (!sharding_.bf16_gradients) return values;
  const Tensor wire =
      program_.transient(numbered("wire", bucket), DType::kBF16, values.shape(), MemoryClass::kCommunication);
  program_.record(numbered("to_wire", bucket), &Kernels::cast, values.in(), wire.out());
  return wire;
}

void Gradients::reduce(size_t bucket, bool last) {
  const Scope scope(program_, "", Phase::kGradComm);
  State& state = states_[bucket];
  const bool tied = layout_.buckets()[bucket].tied && groups_.size(Role::kTied) > 1;
  // Across groups once a step. Over the tied stages behind everything else: the first stage, which has its gradient
  // last, gets there only when the last one has sent all that it sends.
  const auto across = [this, bucket, tied](Tensor x) {
    record_reduce(numbered("replicate", bucket), Role::kReplicate, x);
    if (tied) at_end_.emplace_back([this, bucket, x] { record_reduce(numbered("tied", bucket), Role::kTied, x); });
  };
  const Range shard = layout_.shard(bucket);
  if (!state.open.defined()) {  // All of this micro-batch's has gone with an earlier one's.
    if (!last) return;
    return behind_reduction([this, across, target = reduced_.range(bucket, shard)] {
      const Scope inner(program_, "", Phase::kGradComm);
      across(target);
    });
  }
  if (!keeps_whole()) zero_unwritten(bucket);
  sum_partials(bucket);
  if (!communicates(bucket)) return;  // Then all is kept whole, and there is one round.
  const Tensor wire = on_wire(bucket, state.open);
  const auto back = [this, bucket](Tensor from, Tensor to) {
    const Scope inner(program_, "", Phase::kGradComm);
    program_.record(numbered("from_wire", bucket), &Kernels::cast, from.in(), to.out());
  };
  if (sharding_.zero_stage == 0) {
    record_reduce(numbered("reduce", bucket), Role::kShard, wire);
    across(wire);
    if (!sharding_.bf16_gradients) return;
    const auto record = [back, wire, to = state.open] { back(wire, to); };
    if (tied) {
      at_end_.emplace_back(record);
    } else {
      behind_reduction(record);
    }
    return;
  }
  const Tensor target = reduced_.range(bucket, shard);
  const bool adds = !keeps_whole() && state.units_done > static_cast<int64_t>(layout_.buckets()[bucket].units.size());
  Tensor part = wire.slice(shard.first, {shard.count});  // In place, unless it must outlive the slot.
  if (!keeps_whole() && !sharding_.bf16_gradients) {
    part = adds ? program_.transient(numbered("part", bucket), DType::kF32, {shard.count}, MemoryClass::kCommunication)
                : target;
  }
  program_.record(numbered("scatter", bucket), groups_.id(Role::kShard), &Communicator::reduce_scatter, ReduceOp::kSum,
                  wire.in(), part.out());
  if (!keeps_whole()) {
    release_slot(bucket);
    state.open = Tensor();
  }
  if (!adds && last && !sharding_.bf16_gradients) return across(target);
  if (!adds && !sharding_.bf16_gradients) return;
  behind_reduction([=, this] {
    const Scope inner(program_, "", Phase::kGradComm);
    Tensor summand = part;
    if (sharding_.bf16_gradients) {
      summand =
          adds ? program_.transient(numbered("part", bucket), DType::kF32, {shard.count}, MemoryClass::kCommunication)
               : target;
      back(part, summand);
    }
    if (adds) program_.record(numbered("add", bucket), &Kernels::add, target.in(), summand.in(), target.out());
    if (last) across(target);
  });
}

}  // namespace telar::parallel
