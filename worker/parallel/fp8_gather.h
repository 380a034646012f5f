// Weights that ranks keep in shards, gathered in FP8: a byte an element instead of two.
//
// A bucket is gathered so where all of it that decays are weights of products in FP8, which nobody reads otherwise, and
// which have one scale each: current, found over the shards by one all-reduce of a number a weight, or delayed. Each
// rank then rounds its shard as the whole would be, once a step, and gathers bring the same bytes that rounding behind
// a gather gives. What does not decay, norms and biases, is little: it comes whole by an all-reduce of shards and
// zeros.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker/parallel/flat_tensors.h"
#include "worker/parallel/fp8_scales.h"
#include "worker/parallel/groups.h"

namespace telar::parallel {

// Which of the products' weights are in FP8, and by what scales.
struct Fp8Weights {
  const Fp8Scales* scales = nullptr;
  std::set<std::string> products;
};

class Fp8Gather {
 public:
  // `stored`: this rank's shards. All must outlive it.
  Fp8Gather(engine::Program& program, const FlatLayout& layout, const Groups& groups, const FlatTensors& stored,
            const Fp8Weights& fp8);

  bool takes(size_t bucket) const { return takes_[bucket]; }
  struct Slot {
    engine::Tensor whole;  // f8e4m3 [elements of the bucket]
    engine::Tensor rest;   // What does not decay, as stored; undefined if all does.
  };
  Slot slot(size_t bucket, const std::string& name);
  void gather(size_t bucket, const Slot& into);
  // f32 [1] of a weight whose bucket was gathered.
  engine::Tensor inverse_scale(const std::string& product) const { return inverses_.at(product); }

 private:
  struct Member {
    std::string product;
    Range range;      // Of the bucket, up to where the next begins or the bucket ends.
    int64_t own = 0;  // Elements of the weight.
  };
  // The shard in FP8, made at the first call.
  engine::Tensor shard(size_t bucket);
  void quantize(size_t bucket, const Member& member, engine::Tensor amax, engine::Tensor to);
  Range held(size_t bucket, const Range& range) const;

  engine::Program& program_;
  const FlatLayout& layout_;
  const Groups& groups_;
  const FlatTensors& stored_;
  const Fp8Weights& fp8_;
  std::vector<std::vector<Member>> members_;  // By bucket, in order.
  std::vector<bool> takes_;
  std::map<size_t, engine::Tensor> shards_;
  std::map<std::string, engine::Tensor> inverses_;
};

}  // namespace telar::parallel
