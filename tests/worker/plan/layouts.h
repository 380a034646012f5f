// Jobs in many layouts, generated from a seed, and what all their ranks make of them; no device.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "worker/plan/resolve.h"
#include "worker/plan/run_shape.h"

namespace telar::plan::testing {

struct Layout {
  std::string model = "gpt2";
  uint32_t tensor = 1, pipeline = 1, data = 1;
  uint32_t zero = 0, shard = 0;  // 0: all replicas.
  std::string schedule;
  uint32_t virtual_stages = 0;
  uint32_t micro_batches = 2;
  v1::MemorySpec::Recompute recompute = v1::MemorySpec::NONE;
  uint32_t prefetch = 1;
  v1::Precision precision = v1::BF16, reduce = v1::FP32;

  uint32_t ranks() const { return tensor * pipeline * data; }
};

inline std::string to_text(const Layout& layout) {
  return layout.model + " tp " + std::to_string(layout.tensor) + " pp " + std::to_string(layout.pipeline) + " dp " +
         std::to_string(layout.data) + " zero " + std::to_string(layout.zero) + " shard " +
         std::to_string(layout.shard) + " " + layout.schedule + " x " + std::to_string(layout.virtual_stages) +
         " micro-batches " + std::to_string(layout.micro_batches) + " " +
         v1::MemorySpec::Recompute_Name(layout.recompute) + " prefetch " + std::to_string(layout.prefetch) + " " +
         v1::Precision_Name(layout.precision) + " reduced in " + v1::Precision_Name(layout.reduce);
}

// Sizes that divide by little: 7 layers, a vocabulary of 67, an inner width of 37.
inline v1::ModelSpec small_model(const std::string& name) {
  const bool llama = name.starts_with("llama");
  v1::ModelSpec model;
  model.set_architecture(llama ? v1::LLAMA : v1::GPT2);
  model.set_layers(7);
  model.set_heads(8);
  model.set_kv_heads(llama ? 2 : 8);
  model.set_hidden(llama ? 48 : 40);
  model.set_ffn(37);
  model.set_vocab(67);
  model.set_tied_head(name == "gpt2" || name == "llama_tied");
  if (name == "llama_bias") model.set_qkv_bias(true);
  return model;
}

inline v1::JobSpec spec_of(const Layout& layout, v1::ModelSpec model) {
  v1::JobSpec spec;
  spec.set_name("x");
  *spec.mutable_model() = std::move(model);
  spec.mutable_data()->add_train("/x");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_batch()->set_micro(2);
  spec.mutable_batch()->set_global(2 * layout.micro_batches * layout.data);
  spec.mutable_batch()->set_sequence_length(16);
  spec.mutable_schedule()->set_steps(1);
  spec.mutable_precision()->set_compute(layout.precision);
  spec.mutable_resources()->set_devices(layout.ranks());
  spec.mutable_memory()->set_recompute(layout.recompute);
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  parallel.set_tensor(layout.tensor);
  parallel.set_pipeline(layout.pipeline);
  parallel.set_data(layout.data);
  parallel.set_zero_stage(layout.zero);
  if (layout.zero > 0) parallel.set_shard(layout.shard);
  if (layout.zero == 3) parallel.set_prefetch(layout.prefetch);
  parallel.set_schedule(layout.schedule);
  parallel.set_virtual_stages(layout.virtual_stages);
  parallel.set_reduce(layout.reduce);
  const auto problems = resolve(spec, v1::ResourceSpec::GPU);
  EXPECT_THAT(problems, ::testing::IsEmpty()) << to_text(layout);
  return spec;
}
inline v1::JobSpec spec_of(const Layout& layout) { return spec_of(layout, small_model(layout.model)); }

// Of all ranks, in their order.
inline std::vector<RunShape> shapes_of(const v1::JobSpec& spec, int64_t bucket_elements) {
  const v1::ParallelSpec& parallel = spec.parallel();
  std::vector<RunShape> shapes;
  for (int rank = 0; rank < static_cast<int>(spec.resources().devices()); ++rank) {
    const auto mesh =
        parallel::Mesh::of_rank(rank, static_cast<int>(parallel.data()), static_cast<int>(parallel.pipeline()),
                                static_cast<int>(parallel.tensor()));
    shapes.push_back(run_shape(spec, mesh, bucket_elements));
  }
  return shapes;
}

// `count` of them with at most `most_ranks` ranks; the same ones for the same seed.
inline std::vector<Layout> generated_layouts(int count, uint32_t seed, uint32_t most_ranks = 16) {
  std::mt19937 random(seed);
  const auto any = [&](const auto& of) { return of[random() % std::size(of)]; };
  std::vector<Layout> all;
  while (static_cast<int>(all.size()) < count) {
    Layout layout;
    layout.model = any(std::vector<std::string>{"gpt2", "gpt2_untied", "llama", "llama_tied", "llama_bias"});
    layout.tensor = any(std::vector<uint32_t>{1, 1, 2, 4, 8});
    layout.pipeline = any(std::vector<uint32_t>{1, 2, 3, 4});
    layout.data = any(std::vector<uint32_t>{1, 2, 3, 4});
    if (layout.ranks() > most_ranks) continue;
    layout.zero = random() % 4;
    if (layout.zero > 0) {
      layout.shard = 1 + static_cast<uint32_t>(random() % layout.data);
      if (layout.data % layout.shard != 0) layout.shard = layout.data;
      layout.prefetch = static_cast<uint32_t>(random() % 4);
    }
    layout.schedule = any(std::vector<std::string>{"gpipe", "1f1b", "zb-h1", "interleaved", "zb-v"});
    layout.virtual_stages = 1;
    if (layout.schedule == "zb-v") layout.virtual_stages = 2;
    if (layout.schedule == "interleaved") layout.virtual_stages = 2 + static_cast<uint32_t>(random() % 2);
    if (layout.virtual_stages > 1 && layout.pipeline == 1) continue;
    if (layout.pipeline * layout.virtual_stages > 7) continue;  // A layer each.
    layout.micro_batches = any(std::vector<uint32_t>{1, 2, 3, 5, 8});
    layout.recompute = any(std::vector{v1::MemorySpec::NONE, v1::MemorySpec::SELECTIVE, v1::MemorySpec::FULL});
    layout.precision = any(std::vector{v1::FP32, v1::BF16, v1::BF16, v1::FP16});
    layout.reduce = any(std::vector{v1::FP32, v1::FP32, v1::BF16});
    all.push_back(layout);
  }
  return all;
}

}  // namespace telar::plan::testing
