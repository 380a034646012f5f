// The weights as layers read them: whole, wherever the ranks of a shard group keep them.
//
// ZeRO 0: every rank has all. ZeRO 1 and 2: every rank has room for all. The lowest unit's bucket, which nothing could
// hide in front of a step, is gathered behind its update, beside the updates of the others, and so is whole between
// steps; of the rest a rank's own shard is true, and a program gathers each when it is first read. ZeRO 3: a rank has
// its shards only; a bucket is gathered into a slot whenever it is read and in no slot. It takes the slot that was read
// longest ago and waits for whoever read that and for nothing else: with n + 1 slots up to n gathers run ahead of the
// layer that computes, also where the backward turns round.
//
// FP8 copies of a matrix are made when a layer first wants them: once a step, and with ZeRO 3, where copies of all
// would take as much memory as it saves, once a gather. There buckets that fp8_gather.h takes come in FP8.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "worker/parallel/flat_tensors.h"
#include "worker/parallel/fp8_gather.h"
#include "worker/parallel/groups.h"
#include "worker/parallel/quantized.h"

namespace telar::parallel {

// How a run splits its state: ZeRO, Rajbhandari et al. 2020.
struct Sharding {
  int zero_stage = 0;           // 0 wherever a shard group has one rank.
  int prefetch = 1;             // ZeRO 3: buckets gathered ahead.
  bool bf16_gradients = false;  // What travels; sums are f32 again behind it.
};

class Weights {
 public:
  // `stored`: shards under ZeRO 3, else whole. All must outlive it.
  Weights(engine::Program& program, const FlatLayout& layout, const Groups& groups, const Sharding& sharding,
          FlatTensors stored, Fp8Weights fp8 = {})
      : program_(program),
        layout_(layout),
        groups_(groups),
        sharding_(sharding),
        stored_(std::move(stored)),
        fp8_(std::move(fp8)),
        fp8_gather_(program, layout, groups, stored_, fp8_),
        gathers_(layout.buckets().size(), 0) {}
  Weights(const Weights&) = delete;

  // The packed tensor, for ops that are recorded before the next call. Not of a product in FP8.
  engine::Tensor group(const std::string& name);
  // The weight of a product, in E4M3. At least the copies that are wanted are defined.
  Quantized quantized(const std::string& product, Copies wanted);
  // ZeRO 1, 2: the same in every program of a run.
  bool is_whole_between_steps(size_t bucket) const;
  // This rank's shard of the bucket has new values: gathers it if it is to be whole between steps.
  void updated(size_t bucket);

 private:
  struct Slot {
    Fp8Gather::Slot tensors;  // Where the bucket is not in FP8, `whole` is of the weights' type, and all.
    size_t holds = 0;         // The bucket.
    int64_t read = 0;         // When it was read last, in reads.
  };
  bool gathers_in_fp8(size_t bucket) const { return sharding_.zero_stage == 3 && fp8_gather_.takes(bucket); }
  struct Fp8Copies {
    int64_t gather = 0;   // Of the bucket's gathers, the one that they were made behind.
    engine::Tensor amax;  // Unless they are gathered.
    Quantized made;
  };
  engine::Tensor bucket(size_t index);
  Fp8Gather::Slot slot_of(size_t index);
  Quantized quantized_in_gather(const std::string& product, Copies wanted);
  void gather(size_t index, engine::Tensor shard, engine::Tensor whole);

  engine::Program& program_;
  const FlatLayout& layout_;
  const Groups& groups_;
  const Sharding sharding_;
  const FlatTensors stored_;
  const Fp8Weights fp8_;
  Fp8Gather fp8_gather_;
  std::vector<int64_t> gathers_;             // By bucket, recorded so far.
  std::map<std::string, Fp8Copies> copies_;  // By product.
  // By elements of the buckets that share them, and of what they have in FP8.
  std::map<std::pair<int64_t, int64_t>, std::vector<Slot>> slots_;
  int64_t reads_ = 0;
};

}  // namespace telar::parallel
