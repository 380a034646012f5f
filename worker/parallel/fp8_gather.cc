#include "worker/parallel/fp8_gather.h"

#include <algorithm>

namespace telar::parallel {

using backend::Communicator;
using backend::Kernels;
using backend::ReduceOp;
using engine::DType;
using engine::MemoryClass;
using engine::Tensor;

namespace {

constexpr char kWeight[] = ".weight";
constexpr int64_t kInverseStride = 4;  // Elements: products take scales that are aligned to 16 bytes.

// Elements as a matrix, as kernels like it: of rows that are long, but not too long to be many.
Tensor as_matrix(const Tensor& x) {
  int64_t width = 1024;
  while (x.elements() % width != 0) width /= 2;
  return x.reshape({x.elements() / width, width});
}

}  // namespace

Fp8Gather::Fp8Gather(engine::Program& program, const FlatLayout& layout, const Groups& groups,
                     const FlatTensors& stored, const Fp8Weights& fp8)
    : program_(program),
      layout_(layout),
      groups_(groups),
      stored_(stored),
      fp8_(fp8),
      members_(layout.buckets().size()),
      takes_(layout.buckets().size(), fp8.scales != nullptr && !fp8.scales->are_in_blocks()) {
  for (size_t i = 0; i < layout.groups().size(); ++i) {
    const ParameterGroup& group = layout.groups()[i];
    if (!group.decays) continue;
    const GroupPlace& place = layout.place(i);
    const auto bucket = static_cast<size_t>(place.bucket);
    const std::string product = group.name.substr(0, group.name.rfind(kWeight));
    if (!fp8.products.contains(product)) takes_[bucket] = false;
    members_[bucket].push_back({product, {place.first, 0}, group.shape.elements()});
  }
  for (size_t bucket = 0; bucket < members_.size(); ++bucket) {
    std::vector<Member>& members = members_[bucket];
    if (members.empty()) takes_[bucket] = false;
    std::ranges::sort(members, {}, [](const Member& member) { return member.range.first; });
    for (size_t i = 0; i < members.size(); ++i) {
      const int64_t end = i + 1 < members.size() ? members[i + 1].range.first : layout.buckets()[bucket].elements;
      members[i].range.count = end - members[i].range.first;
    }
  }
}

Range Fp8Gather::held(size_t bucket, const Range& range) const {
  const Range shard = layout_.shard(bucket);
  const int64_t first = std::max(shard.first, range.first);
  return {first, std::max<int64_t>(0, std::min(shard.end(), range.end()) - first)};
}

Fp8Gather::Slot Fp8Gather::slot(size_t bucket, const std::string& name) {
  const Bucket& of = layout_.buckets()[bucket];
  Slot slot{program_.transient(name, DType::kF8E4M3, {of.elements}, MemoryClass::kCommunication), {}};
  if (of.decayed == of.elements) return slot;
  slot.rest = program_.transient(name + ".rest", stored_.buckets()[bucket].dtype(), {of.elements - of.decayed},
                                 MemoryClass::kCommunication);
  return slot;
}

// What lies behind a weight up to the next one is not part of it: rounded as well, as it is gathered, but not looked
// at.
void Fp8Gather::quantize(size_t bucket, const Member& member, Tensor amax, Tensor to) {
  const int64_t end = member.range.first + member.own;
  const Range shard = layout_.shard(bucket);
  for (const bool is_own : {true, false}) {
    const Range part =
        held(bucket, is_own ? Range{member.range.first, member.own} : Range{end, member.range.end() - end});
    if (part.count == 0) continue;
    const Tensor from = as_matrix(stored_.range(bucket, part));
    const std::string name = member.product + (is_own ? ".weight.shard" : ".weight.shard.behind");
    const Tensor inverse = program_.transient(name + ".inverse", DType::kF32, {1}, MemoryClass::kWorkspace);
    program_.record(name + ".quantize", &Kernels::quantize, from.in(), amax.in(),
                    to.slice(part.first - shard.first, from.shape()).out(), Tensor().out(), inverse.out(),
                    (is_own ? fp8_.scales->seen(member.product, Operand::kWeight) : Tensor()).inout());
  }
}

Tensor Fp8Gather::shard(size_t bucket) {
  if (const auto found = shards_.find(bucket); found != shards_.end()) return found->second;
  const std::vector<Member>& members = members_[bucket];
  const std::string name = "weights.fp8." + std::to_string(bucket);
  const auto count = static_cast<int64_t>(members.size());
  const Tensor amaxes = program_.transient(name + ".amax", DType::kF32, {count}, MemoryClass::kWorkspace);
  for (int64_t i = 0; i < count; ++i) {
    const Member& member = members[static_cast<size_t>(i)];
    const Range part = held(bucket, {member.range.first, member.own});
    const Tensor amax = amaxes.slice(i, {1});
    if (part.count == 0) {
      program_.record(name + ".amax.none", &Kernels::fill, 0.0f, amax.out());
    } else {
      program_.record(member.product + ".weight.shard.amax", &Kernels::amax, stored_.range(bucket, part).in(),
                      fp8_.scales->known(member.product, Operand::kWeight).in(), amax.out());
    }
  }
  program_.record(name + ".amax.reduce", groups_.id(Role::kGather), &Communicator::all_reduce, ReduceOp::kMax,
                  amaxes.inout());
  const Tensor inverses =
      program_.transient(name + ".inverses", DType::kF32, {count, kInverseStride}, MemoryClass::kWeights);
  program_.record(name + ".inverses", &Kernels::inverse_scales, amaxes.in(), inverses.out());
  const Tensor made = program_.transient(name, DType::kF8E4M3, {layout_.shard(bucket).count}, MemoryClass::kWeights);
  for (int64_t i = 0; i < count; ++i) {
    const Member& member = members[static_cast<size_t>(i)];
    quantize(bucket, member, amaxes.slice(i, {1}), made);
    inverses_[member.product] = inverses.slice(i * kInverseStride, {1});
  }
  return shards_[bucket] = made;
}

void Fp8Gather::gather(size_t bucket, const Slot& into) {
  const engine::Program::Scope scope(program_, "", engine::Phase::kWeightComm);
  const std::string name = "weights.gather." + std::to_string(bucket);
  const Tensor own = shard(bucket);
  program_.record(name, groups_.id(Role::kGather), &Communicator::all_gather, own.in(), into.whole.out());
  if (!into.rest.defined()) return;
  const int64_t decayed = layout_.buckets()[bucket].decayed;
  program_.record(name + ".rest.zero", &Kernels::fill, 0.0f, into.rest.out());
  if (const Range part = held(bucket, {decayed, into.rest.elements()}); part.count > 0) {
    program_.record(name + ".rest.own", &Kernels::copy, stored_.range(bucket, part).in(),
                    into.rest.slice(part.first - decayed, {part.count}).out());
  }
  program_.record(name + ".rest", groups_.id(Role::kGather), &Communicator::all_reduce, ReduceOp::kSum,
                  into.rest.inout());
}

}  // namespace telar::parallel
