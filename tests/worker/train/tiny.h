// A small model and batches for it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "worker/plan/resolve.h"
#include "worker/train/replica.h"

namespace telar::train::testing {

inline constexpr int64_t kSequence = 64, kMicro = 2, kBatch = 4, kVocab = 257;

// Heads and sequences are large enough for what GPUs have fast attention for.
inline v1::JobSpec tiny_spec(v1::Precision precision = v1::FP32, uint32_t replicas = 1) {
  v1::JobSpec spec;
  spec.set_name("tiny");
  spec.set_seed(5);
  spec.mutable_model()->set_architecture(v1::LLAMA);
  spec.mutable_model()->set_layers(2);
  spec.mutable_model()->set_hidden(64);
  spec.mutable_model()->set_heads(2);
  spec.mutable_model()->set_ffn(96);
  spec.mutable_model()->set_vocab(kVocab);
  spec.mutable_data()->add_train("/tiny.bin");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_batch()->set_global(kBatch * replicas);
  spec.mutable_batch()->set_micro(kMicro);
  spec.mutable_batch()->set_sequence_length(kSequence);
  spec.mutable_precision()->set_compute(precision);
  spec.mutable_resources()->set_devices(replicas);
  spec.mutable_optimizer()->set_learning_rate(3e-3);
  spec.mutable_schedule()->set_kind(v1::ScheduleSpec::CONSTANT);
  spec.mutable_schedule()->set_steps(100);
  EXPECT_TRUE(plan::resolve(spec, v1::ResourceSpec::CPU).empty());
  return spec;
}

// Step `step`'s inputs and targets for one replica of tiny_spec().
inline std::pair<std::vector<int32_t>, std::vector<int32_t>> tiny_batch(uint64_t step) {
  std::mt19937_64 random(step);
  std::vector<int32_t> inputs(kBatch * kSequence), targets(kBatch * kSequence);
  for (int32_t& id : inputs) id = static_cast<int32_t>(random() % kVocab);
  for (int32_t& id : targets) id = static_cast<int32_t>(random() % kVocab);
  return {inputs, targets};
}

inline absl::Status submit(Replica& replica, uint64_t step, bool stop = false) {
  const auto [inputs, targets] = tiny_batch(step);
  return replica.submit_step(step, inputs, targets, stop);
}

// What a replica is, to compare bit by bit: its masters and moments.
inline std::vector<float> state_of(const Replica& replica) {
  std::vector<float> all;
  for (const Replica::Kind kind : {Replica::Kind::kMaster, Replica::Kind::kExpAvg, Replica::Kind::kExpAvgSq}) {
    for (const parallel::Piece& piece : replica.pieces()) {
      std::vector<float> part(static_cast<size_t>(piece.slice.count));
      const absl::Status status = replica.read(kind, piece, part);
      EXPECT_TRUE(status.ok()) << status;
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  return all;
}

// Steps 1 to `steps` with up to `depth` in flight. By step: loss, norm, valid tokens.
inline std::vector<std::vector<double>> train(Replica& replica, uint64_t steps, int depth) {
  std::vector<std::vector<double>> results;
  uint64_t submitted = 0;
  while (results.size() < steps) {
    while (submitted < steps && replica.in_flight() < depth) {
      const absl::Status status = submit(replica, ++submitted);
      EXPECT_TRUE(status.ok()) << status;
    }
    const auto result = replica.finish_step();
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) break;
    results.push_back({result->loss, result->grad_norm, result->valid_tokens});
  }
  return results;
}

}  // namespace telar::train::testing
