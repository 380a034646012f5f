// The gradients as layers write them: whole buckets, summed over the ranks as soon as they are complete.
//
// ZeRO 0 and 1 keep whole buckets for the whole step and reduce each once, behind its last micro-batch: no
// communication while micro-batches accumulate. ZeRO 2 and 3 keep the shards of sums only; a bucket takes a slot for
// one micro-batch, is reduced, and what comes out is added to the shard. Sums go in f32 unless
// Sharding::bf16_gradients.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker/parallel/flat_tensors.h"
#include "worker/parallel/groups.h"
#include "worker/parallel/weights.h"

namespace telar::parallel {

class Gradients {
 public:
  // Every unit will be done `rounds` times: the step's micro-batches. All must outlive it.
  Gradients(engine::Program& program, const FlatLayout& layout, const Groups& groups, const Sharding& sharding,
            int64_t rounds);

  // The packed gradient, f32; for ops that are recorded before the next call. What no product writes is zero at the
  // beginning of a step (ZeRO 2, 3: of a micro-batch).
  engine::Tensor group(const std::string& name);
  // Whether the next product that has this gradient must add to it; if not it has to write it whole.
  bool adds(const std::string& name);
  // All gradients of the unit are recorded for one micro-batch.
  void unit_done(int unit);
  // Whether the unit's gradients go to other ranks in this micro-batch, once its bucket's units are done.
  bool sends_next(int unit) const;
  // Behind the last unit_done() and all that the step sends to other stages.
  void finish();

  // What the optimizer finds: whole buckets with ZeRO 0, else this rank's shards.
  const FlatTensors& reduced() const { return reduced_; }

 private:
  struct State {
    engine::Tensor open;  // Where the bucket is being accumulated; undefined: nowhere.
    std::map<std::string, bool> written;
    int64_t units_done = 0;
  };
  struct Ring {
    std::vector<engine::Tensor> slots;
    std::vector<bool> taken;
    size_t next = 0;
    std::map<size_t, size_t> of_bucket;
  };
  bool keeps_whole() const { return sharding_.zero_stage < 2; }
  bool communicates(size_t bucket) const;
  void open(size_t bucket);
  engine::Tensor take_slot(size_t bucket);
  void release_slot(size_t bucket);
  void zero(size_t bucket);
  void zero_unwritten(size_t bucket);
  void sum_partials(size_t bucket);
  void reduce(size_t bucket, bool last);
  engine::Tensor on_wire(size_t bucket, engine::Tensor values);
  void record_reduce(const std::string& name, Role role, engine::Tensor x);
  // Recorded one reduction later than it could be, so that the compute lane does not wait for the reduction at hand.
  void behind_reduction(std::function<void()> record);
  void record_pending();

  engine::Program& program_;
  const FlatLayout& layout_;
  const Groups& groups_;
  const Sharding sharding_;
  const int64_t rounds_;
  FlatTensors whole_, reduced_;
  std::vector<State> states_;
  std::map<int64_t, Ring> rings_;
  std::function<void()> pending_;
  std::vector<std::function<void()>> at_end_;
};

}  // namespace telar::parallel
