// One job in many layouts: what a layout is, its spec, batches, and what a run of it computed.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/fakes/thread_communicators.h"
#include "tests/worker/train/ranks.h"
#include "worker/plan/resolve.h"

namespace telar::train::testing {

// One layout of one model.
struct Layout {
  const char* model = "gpt2";
  uint32_t tensor = 1, pipeline = 1, data = 1;
  uint32_t zero = 0, shard = 0;
  const char* schedule = "";
  uint32_t virtual_stages = 0;
  uint32_t micro = 2;
  v1::MemorySpec::Recompute recompute = v1::MemorySpec::NONE;
  uint32_t prefetch = 1;
  std::vector<uint32_t> stage_layers = {};
  const char* schedule_text = "";
  v1::Precision precision = v1::FP32, reduce = v1::FP32;
  bool offload = false;
  bool overlap = true;  // Of tensor-parallel collectives with products.

  uint32_t ranks() const { return tensor * pipeline * data; }
};

inline std::string name_of(const Layout& layout) {
  std::string name = layout.model;
  const auto add = [&](const char* what, uint32_t value, uint32_t usual) {
    if (value != usual) name += std::string("_") + what + std::to_string(value);
  };
  add("tp", layout.tensor, 1);
  add("pp", layout.pipeline, 1);
  add("dp", layout.data, 1);
  add("zero", layout.zero, 0);
  add("shard", layout.shard, 0);
  if (layout.schedule[0] != 0) name += std::string("_") + layout.schedule;
  std::replace(name.begin(), name.end(), '-', '_');
  add("v", layout.virtual_stages, 0);
  add("micro", layout.micro, 2);
  add("recompute", static_cast<uint32_t>(layout.recompute), 1);
  add("prefetch", layout.prefetch, 1);
  if (!layout.stage_layers.empty()) name += "_layers";
  for (const uint32_t layers : layout.stage_layers) name += std::to_string(layers);
  for (const char* at = layout.schedule_text; *at != 0; ++at) name += std::isalnum(*at) ? std::string(1, *at) : "_";
  if (layout.precision == v1::BF16) name += "_bf16";
  if (layout.precision == v1::FP8) name += "_fp8";
  if (layout.reduce == v1::BF16) name += "_reduce_bf16";
  if (layout.offload) name += "_offload";
  if (!layout.overlap) name += "_whole";
  return name;
}
inline void PrintTo(const Layout& layout, std::ostream* out) { *out << name_of(layout); }

// Sizes that divide by nothing: 5 layers, a vocabulary of 67, an inner width of 37; heads of an odd dimension. A name
// begins with the architecture, further words say what is special.
inline void describe(const std::string& name, v1::ModelSpec& model) {
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  const bool llama = name.rfind("llama", 0) == 0;
  model.set_architecture(llama ? v1::LLAMA : v1::GPT2);
  model.set_layers(has("deep") ? 7 : 5);
  model.set_heads(8);
  model.set_kv_heads(!llama ? 8 : has("one_kv") ? 1 : 2);
  model.set_hidden(llama ? 48 : 40);
  if (has("wide_heads")) {  // Queries are wider than the model.
    model.set_hidden(40);
    model.set_head_dim(6);
  }
  model.set_ffn(has("narrow") ? 9 : 37);
  if (has("even")) {  // As FP8 needs them, and over two ranks.
    model.set_hidden(64);
    model.set_ffn(96);
  }
  if (has("blocks")) {  // The same of FP8 in blocks of 128.
    model.set_layers(2);
    model.set_hidden(llama ? 128 : 256);
    model.set_head_dim(32);
    if (llama) model.set_kv_heads(4);
    model.set_ffn(256);
  }
  model.set_vocab(has("few_words") ? 9 : 67);
  model.set_tied_head(name == "gpt2" || has("tied"));
  if (has("bias")) model.set_qkv_bias(true);
  model.set_init_stddev(0.15);
}

constexpr uint32_t kGlobal = 16, kSequence = 8;
#ifdef __SANITIZE_THREAD__
constexpr int kSteps = 3;  // All ops have met all others by then.
#else
constexpr int kSteps = 10;
#endif

// Eight of these sequences are a whole block of tokens.
inline uint32_t sequence_of(std::string_view model) {
  return model.find("blocks") != std::string_view::npos ? 16 : kSequence;
}

inline v1::JobSpec spec_of(const Layout& layout) {
  v1::JobSpec spec;
  spec.set_name("x");
  spec.set_seed(7);
  describe(layout.model, *spec.mutable_model());
  spec.mutable_data()->add_train("/x");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_batch()->set_global(kGlobal);
  spec.mutable_batch()->set_micro(layout.micro);
  spec.mutable_batch()->set_sequence_length(sequence_of(layout.model));
  spec.mutable_optimizer()->set_learning_rate(3e-3);
  spec.mutable_optimizer()->set_clip_norm(0.5);
  spec.mutable_schedule()->set_steps(kSteps);
  spec.mutable_precision()->set_compute(layout.precision);
  spec.mutable_resources()->set_devices(layout.ranks());
  spec.mutable_memory()->set_recompute(layout.recompute);
  spec.mutable_memory()->set_offload_activations(layout.offload);
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  parallel.set_tensor(layout.tensor);
  parallel.set_pipeline(layout.pipeline);
  parallel.set_data(layout.data);
  parallel.set_zero_stage(layout.zero);
  parallel.set_shard(layout.shard);
  parallel.set_schedule(layout.schedule);
  parallel.set_schedule_text(layout.schedule_text);
  parallel.set_virtual_stages(layout.virtual_stages);
  parallel.set_reduce(layout.reduce);
  for (const uint32_t layers : layout.stage_layers) parallel.add_stage_layers(layers);
  if (layout.tensor > 1) parallel.set_overlap_tensor(layout.overlap);
  if (layout.prefetch != 1) parallel.set_prefetch(layout.prefetch);
  if (std::string_view(layout.model).find("documents") != std::string_view::npos) {
    spec.mutable_data()->set_reset_at_documents(true);
    spec.mutable_tokenizer()->set_end_of_document("0");
  }
  const auto problems = plan::resolve(spec, v1::ResourceSpec::CPU);
  for (const plan::SpecProblem& problem : problems) {
    ADD_FAILURE() << name_of(layout) << ": " << problem.field << ": " << problem.description;
  }
  return spec;
}

struct Batch {
  std::vector<int32_t> inputs, targets, starts;  // No starts where documents see each other.
};

// Some targets do not count, and in an uneven way: of the first sequences none does, in the first step of few, in the
// second of half the batch, so that there are micro-batches and whole ranks without a target; later of random ones.
inline Batch batch_of(const v1::JobSpec& spec, int step) {
  std::mt19937 random(static_cast<uint32_t>(step));
  const uint32_t vocab = spec.model().vocab();
  Batch batch;
  for (uint32_t s = 0; s < kGlobal; ++s) {
    const bool none = (step == 1 && s < 2) || (step == 2 && s < kGlobal / 2) || (step > 2 && random() % 4 == 0);
    for (uint32_t t = 0; t < kSequence; ++t) {
      batch.inputs.push_back(static_cast<int32_t>(random() % vocab));
      const auto target = static_cast<int32_t>(random() % vocab);
      batch.targets.push_back(none || random() % 5 == 0 ? -1 : target);
    }
  }
  if (!spec.data().reset_at_documents()) return batch;
  for (uint32_t s = 0; s < kGlobal; ++s) {  // From a document a row to rows of many.
    for (uint32_t t = 0, start = 0; t < kSequence; ++t) {
      if (random() % kGlobal < s) start = t;
      batch.starts.push_back(static_cast<int32_t>(start));
    }
  }
  return batch;
}

struct Outcome {
  std::vector<double> losses, norms;
  Logical first_gradients, masters;
};

constexpr int64_t kBucketElements = 3000;  // Several buckets, some of more than one layer.

// Ranks that meet through `communicators`.
inline RankOptions options_of(fakes::ThreadCommunicators& communicators) {
  RankOptions options;
  options.bucket_elements = kBucketElements;
  options.device = [&communicators](int) {
    return backend::cpu::create_device({}, backend::cpu::create_kernels(), communicators.factory());
  };
  return options;
}

inline void run(const v1::JobSpec& spec, const RankOptions& options, int steps, Outcome& outcome) {
  std::mutex mutex;
  std::map<int, std::vector<std::pair<double, double>>> seen;  // By rank.
  on_all_ranks(spec, options, [&](int rank, Replica& replica) {
    ASSERT_TRUE(replica.init().ok());
    for (int step = 1; step <= steps; ++step) {
      const Batch batch = batch_of(spec, step);
      const auto result = replica.train_step(static_cast<uint64_t>(step), share(batch.inputs, replica),
                                             share(batch.targets, replica), false, share(batch.starts, replica));
      ASSERT_TRUE(result.ok()) << result.status();
      {
        const std::lock_guard lock(mutex);
        seen[rank].emplace_back(result->loss, result->grad_norm);
      }
      if (step == 1) outcome.first_gradients.add(replica, Replica::Kind::kGrad);
    }
    outcome.masters.add(replica, Replica::Kind::kMaster);
  });
  ASSERT_EQ(seen.size(), steps > 0 ? spec.resources().devices() : 0);
  for (const auto& [rank, results] : seen) EXPECT_EQ(results, seen[0]) << "ranks disagree: " << rank;
  for (const auto& [loss, norm] : seen[0]) {
    outcome.losses.push_back(loss);
    outcome.norms.push_back(norm);
  }
}

// The same with ranks that meet in memory.
inline void run(const Layout& layout, int steps, Outcome& outcome) {
  fakes::ThreadCommunicators communicators;
  run(spec_of(layout), options_of(communicators), steps, outcome);
}

}  // namespace telar::train::testing
