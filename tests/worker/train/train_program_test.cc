// What a training step computes on the CPU must not depend on how its program is recorded: what is kept and what is
// recomputed, who writes a gradient first, what was in the gradients before.
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "tests/worker/train/ranks.h"
#include "worker/plan/resolve.h"

namespace telar::train {
namespace {

using testing::Logical;

constexpr uint32_t kGlobal = 8, kSequence = 16, kVocab = 61;  // 61: rows of padding in the head.
constexpr uint64_t kSteps = 3;

struct Job {
  const char* name;
  v1::Architecture architecture = v1::GPT2;
  v1::Precision precision = v1::FP32;
  uint32_t replicas = 1;
  uint32_t micro = kGlobal;
  bool tied_head = true;
  int64_t logits_bytes = model::Head::kChunkBytes;
  uint32_t tensor = 1, pipeline = 1, zero = 0;
  const char* schedule = "";
  uint32_t virtual_stages = 0;
};
void PrintTo(const Job& job, std::ostream* out) { *out << job.name; }

// f32 logits of 40 rows: the 128 tokens of a batch of kGlobal sequences make four chunks of 32.
constexpr int64_t kFortyRows = 40 * 64 * 4;

v1::JobSpec spec_of(const Job& job, v1::MemorySpec::Recompute recompute) {
  v1::JobSpec spec;
  spec.set_name("x");
  spec.set_seed(3);
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_architecture(job.architecture);
  model.set_layers(4);  // One a stage for zb-v on two ranks.
  model.set_hidden(32);
  model.set_heads(4);
  model.set_kv_heads(job.architecture == v1::GPT2 ? 4 : 2);
  model.set_ffn(96);
  model.set_vocab(kVocab);
  model.set_tied_head(job.tied_head);
  model.set_init_stddev(0.3);  // Large, so that gradients of all layers matter.
  spec.mutable_data()->add_train("/x");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_batch()->set_global(kGlobal);
  spec.mutable_batch()->set_micro(job.micro);
  spec.mutable_batch()->set_sequence_length(kSequence);
  spec.mutable_optimizer()->set_learning_rate(1e-2);
  spec.mutable_schedule()->set_steps(kSteps);
  spec.mutable_precision()->set_compute(job.precision);
  spec.mutable_resources()->set_devices(job.replicas * job.tensor * job.pipeline);
  spec.mutable_parallel()->set_tensor(job.tensor);
  spec.mutable_parallel()->set_pipeline(job.pipeline);
  spec.mutable_parallel()->set_zero_stage(job.zero);
  spec.mutable_parallel()->set_schedule(job.schedule);
  spec.mutable_parallel()->set_virtual_stages(job.virtual_stages);
  spec.mutable_memory()->set_recompute(recompute);
  EXPECT_THAT(plan::resolve(spec, v1::ResourceSpec::CPU), ::testing::IsEmpty());
  return spec;
}

// Everything that one rank's steps computed, by name.
using Record = std::map<std::string, std::vector<float>>;

// What a job computed: each rank by itself, and the logical gradients of each step put together from all.
struct Trained {
  std::vector<Record> ranks;
  std::array<Logical, kSteps> gradients;
};

void fill_gradients(Replica& replica, float value) {
  for (const parallel::Piece& piece : replica.pieces()) {
    const std::vector<float> values(static_cast<size_t>(piece.slice.count), value);
    EXPECT_TRUE(replica.write(Replica::Kind::kGrad, piece, values).ok());
  }
}

void run_steps(Replica& replica, bool poison, Record& record, std::array<Logical, kSteps>& gradients) {
  ASSERT_TRUE(replica.init().ok());
  std::mt19937 random(5);
  std::uniform_int_distribution<int32_t> token(0, kVocab - 1);
  for (uint64_t step = 1; step <= kSteps; ++step) {
    std::vector<int32_t> inputs(kGlobal * kSequence), targets(kGlobal * kSequence);
    for (int32_t& id : inputs) id = token(random);
    for (int32_t& id : targets) id = token(random) % 5 == 0 ? -1 : token(random);
    if (poison) fill_gradients(replica, std::numeric_limits<float>::quiet_NaN());
    const auto result =
        replica.train_step(step, testing::share(inputs, replica), testing::share(targets, replica), false);
    ASSERT_TRUE(result.ok()) << result.status();
    const std::string prefix = "step" + std::to_string(step) + "/";
    record[prefix + "loss"] = {static_cast<float>(result->loss)};
    record[prefix + "grad_norm"] = {static_cast<float>(result->grad_norm)};
    for (const parallel::Piece& piece : replica.pieces()) {
      for (const auto& [kind, name] :
           {std::pair(Replica::Kind::kGrad, "grad/"), std::pair(Replica::Kind::kMaster, "master/")}) {
        const auto [at, first] = record.try_emplace(prefix + name + testing::parameter_of(replica, piece).name);
        EXPECT_TRUE(first) << at->first << " is held twice";
        std::vector<float> values(static_cast<size_t>(piece.slice.count));
        EXPECT_TRUE(replica.read(kind, piece, values).ok());
        at->second = std::move(values);
      }
    }
    gradients[step - 1].add(replica, Replica::Kind::kGrad);
  }
}

std::unique_ptr<Trained> train(const Job& job, v1::MemorySpec::Recompute recompute, bool poison = false) {
  const v1::JobSpec spec = spec_of(job, recompute);
  auto trained = std::make_unique<Trained>();
  trained->ranks.resize(spec.resources().devices());
  testing::on_all_ranks(spec, {.logits_bytes = job.logits_bytes}, [&](int rank, Replica& replica) {
    run_steps(replica, poison, trained->ranks[static_cast<size_t>(rank)], trained->gradients);
  });
  return trained;
}

void expect_same_bits(const Trained& trained, const Trained& wanted) {
  const std::vector<Record>&got = trained.ranks, &want = wanted.ranks;
  ASSERT_EQ(got.size(), want.size());
  for (size_t rank = 0; rank < want.size(); ++rank) {
    ASSERT_EQ(got[rank].size(), want[rank].size());
    ASSERT_FALSE(want[rank].empty());
    for (const auto& [name, values] : want[rank]) {
      const auto found = got[rank].find(name);
      ASSERT_NE(found, got[rank].end()) << name;
      ASSERT_EQ(found->second.size(), values.size()) << name;
      for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
      EXPECT_EQ(std::memcmp(found->second.data(), values.data(), values.size() * sizeof(float)), 0)
          << name << " of rank " << rank;
    }
  }
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / std::max(norm, 1e-12));
}

Job layout_of(Job job, uint32_t tensor, uint32_t pipeline, uint32_t zero, const char* schedule = "",
              uint32_t virtual_stages = 0) {
  job.tensor = tensor;
  job.pipeline = pipeline;
  job.zero = zero;
  job.schedule = schedule;
  job.virtual_stages = virtual_stages;
  return job;
}

class TrainProgramTest : public ::testing::TestWithParam<Job> {};

TEST_P(TrainProgramTest, RecomputingChangesNoBit) {
  const std::unique_ptr<Trained> none = train(GetParam(), v1::MemorySpec::NONE);
  {
    SCOPED_TRACE("selective");
    expect_same_bits(*train(GetParam(), v1::MemorySpec::SELECTIVE), *none);
  }
  SCOPED_TRACE("full");
  expect_same_bits(*train(GetParam(), v1::MemorySpec::FULL), *none);
}

TEST_P(TrainProgramTest, WhatWasInTheGradientsDoesNotMatter) {
  expect_same_bits(*train(GetParam(), v1::MemorySpec::NONE, true), *train(GetParam(), v1::MemorySpec::NONE));
}

// The padding of buckets and vocabulary takes part in the norm, too, and must add nothing to it.
TEST_P(TrainProgramTest, GradientNormIsThatOfTheLogicalGradients) {
  const std::unique_ptr<Trained> trained = train(GetParam(), v1::MemorySpec::NONE, true);
  for (uint64_t step = 1; step <= kSteps; ++step) {
    double squares = 0;
    for (const auto& [name, values] : trained->gradients[step - 1].tensors()) {
      for (const float value : values) squares += static_cast<double>(value) * value;
    }
    for (const Record& record : trained->ranks) {
      const std::string norm = "step" + std::to_string(step) + "/grad_norm";
      EXPECT_NEAR(record.at(norm)[0], std::sqrt(squares), 1e-5 * std::sqrt(squares));
    }
  }
}

// A save copies masters, moments and counts while the next step gets as far as its gate. Before it nothing writes them,
// but a gather that leaves the rank's own part of whole fp32 weights as it is.
TEST_P(TrainProgramTest, NothingThatASaveCopiesIsWrittenBeforeTheGate) {
  const v1::JobSpec spec = spec_of(GetParam(), v1::MemorySpec::NONE);
  for (int rank = 0; rank < static_cast<int>(spec.resources().devices()); ++rank) {
    const plan::RunShape shape = plan::run_shape(spec, testing::mesh_of(spec, rank));
    const auto train = plan::record_train(shape);
    std::set<engine::BufferId> saved = {train->state.step.buffer()};
    for (const auto* tensors : {&train->state.master, &train->state.exp_avg, &train->state.exp_avg_sq}) {
      for (const engine::Tensor& bucket : tensors->buckets()) saved.insert(bucket.buffer());
    }
    bool gate = false;
    int updates = 0;
    for (const engine::Op& op : train->program.ops()) {
      gate = gate || op.gate;
      EXPECT_TRUE(!op.gate || op.lane.kind == engine::LaneKind::kCompute);
      const bool gathers = op.comm && op.comm->kind == engine::CommKind::kAllGather;
      for (const engine::Access& access : op.accesses) {
        if (!access.writes() || !saved.contains(access.buffer)) continue;
        if (gathers && shape.weights_are_masters()) {
          EXPECT_EQ(op.accesses[0].buffer, access.buffer) << op.name;  // In place.
          continue;
        }
        EXPECT_TRUE(gate) << op.name;
        EXPECT_EQ(op.lane.kind, engine::LaneKind::kCompute) << op.name;
        ++updates;
      }
    }
    EXPECT_TRUE(gate);
    EXPECT_GT(updates, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, TrainProgramTest,
    ::testing::Values(Job{"gpt2"}, Job{"gpt2_accumulation", v1::GPT2, v1::FP32, 1, 2},
                      Job{"gpt2_bf16_accumulation", v1::GPT2, v1::BF16, 1, 2},
                      Job{"gpt2_bf16_dp2_accumulation", v1::GPT2, v1::BF16, 2, 2},
                      Job{"gpt2_untied", v1::GPT2, v1::FP32, 1, 4, false},
                      Job{"gpt2_chunks_accumulation", v1::GPT2, v1::FP32, 1, 4, true, kFortyRows},
                      Job{"llama_chunks_untied", v1::LLAMA, v1::FP32, 1, 8, false, kFortyRows},
                      Job{"llama_accumulation", v1::LLAMA, v1::FP32, 1, 2, false},
                      Job{"llama_tied_dp2", v1::LLAMA, v1::FP32, 2, 4, true},
                      Job{"llama_bf16", v1::LLAMA, v1::BF16, 1, 8, false},
                      Job{"llama_bf16_dp2_accumulation", v1::LLAMA, v1::BF16, 2, 1, false},
                      layout_of({"gpt2_tp2", v1::GPT2, v1::FP32, 1, 4}, 2, 1, 0),
                      layout_of({"llama_bf16_tp4", v1::LLAMA, v1::BF16, 1, 4, false}, 4, 1, 0),
                      layout_of({"gpt2_pp2_dp2", v1::GPT2, v1::FP32, 2, 1}, 1, 2, 0),
                      layout_of({"llama_zb_h1", v1::LLAMA, v1::FP32, 1, 2, true}, 1, 3, 0, "zb-h1"),
                      layout_of({"gpt2_zb_v_tp2", v1::GPT2, v1::FP32, 1, 2}, 2, 2, 0, "zb-v", 2),
                      layout_of({"gpt2_zero1", v1::GPT2, v1::FP32, 2, 2}, 1, 1, 1),
                      layout_of({"llama_bf16_zero2", v1::LLAMA, v1::BF16, 2, 2, false}, 1, 1, 2),
                      layout_of({"llama_bf16_zero3", v1::LLAMA, v1::BF16, 4, 1, true}, 1, 1, 3),
                      layout_of({"gpt2_tp2_pp2_zero3", v1::GPT2, v1::FP32, 2, 1}, 2, 2, 3)),
    [](const ::testing::TestParamInfo<Job>& parameter) { return std::string(parameter.param.name); });

// Of the first step: later ones begin from weights that differ. Keys' biases have no gradient but rounding.
void expect_near_gradients(const Record& got, const Record& want) {
  for (const auto& [name, values] : want) {
    if (name.rfind("step1/grad", 0) != 0 || name.ends_with(".k.bias")) continue;
    EXPECT_LT(distance(got.at(name), values), 1e-4) << name;
  }
}

// Four micro-batches, or chunks of the head, of which the first writes and the others add, against one.
TEST(TrainProgram, FourMicroBatchesEqualOneAndSoDoFourChunks) {
  for (const v1::Architecture architecture : {v1::GPT2, v1::LLAMA}) {
    for (const bool tied : {true, false}) {
      const Job one{"one", architecture, v1::FP32, 1, kGlobal, tied};
      Job four = one, chunks = one;
      four.micro = kGlobal / 4;
      chunks.logits_bytes = kFortyRows;
      const Record want = train(one, v1::MemorySpec::NONE)->ranks[0];
      expect_near_gradients(train(four, v1::MemorySpec::NONE)->ranks[0], want);
      expect_near_gradients(train(chunks, v1::MemorySpec::NONE)->ranks[0], want);
    }
  }
}

}  // namespace
}  // namespace telar::train
