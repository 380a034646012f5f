#include "worker/plan/programs.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "worker/engine/memory_plan.h"
#include "worker/engine/plan.h"
#include "worker/plan/presets.h"
#include "worker/plan/resolve.h"

namespace telar::plan {
namespace {

v1::JobSpec job(const std::string& preset, uint32_t devices, uint32_t global, uint32_t micro) {
  v1::JobSpec spec;
  spec.set_name("x");
  spec.mutable_model()->set_preset(preset);
  spec.mutable_data()->add_train("/x");
  spec.mutable_batch()->set_global(global);
  spec.mutable_batch()->set_micro(micro);
  spec.mutable_batch()->set_sequence_length(1024);
  spec.mutable_schedule()->set_steps(1);
  spec.mutable_resources()->set_devices(devices);
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::GPU), ::testing::IsEmpty());
  return spec;
}

RunShape shape(const v1::JobSpec& spec) {
  return run_shape(spec, parallel::Mesh::of_rank(0, static_cast<int>(spec.parallel().data()), 1, 1));
}

TEST(TrainProgram, PlansEveryPresetWithoutADevice) {
  for (const std::string& name : preset_names()) {
    const auto train = record_train(shape(job(name, 2, 4, 1)));
    const auto plan = engine::plan(train->program);
    ASSERT_TRUE(plan.ok()) << name << ": " << plan.status();
  }
}

TEST(TrainProgram, NeedsLittleMoreThanWhatIsLiveAtOnce) {
  const auto train = record_train(shape(job("gpt2-124m", 1, 8, 4)));
  const auto plan = engine::plan(train->program);
  ASSERT_TRUE(plan.ok());
  const auto activations = static_cast<size_t>(engine::MemoryClass::kActivations);
  const auto least = engine::least_arena_bytes(train->program);
  EXPECT_LE(static_cast<double>(plan->arena_bytes[activations]), 1.02 * static_cast<double>(least[activations]));
  // The second micro-batch reuses the bytes of the first.
  const auto once = record_train(shape(job("gpt2-124m", 1, 4, 4)));
  EXPECT_EQ(engine::plan(once->program)->arena_bytes[activations], plan->arena_bytes[activations]);
}

// The products write their weights' gradients; only what nothing but adds to is zeroed first.
TEST(TrainProgram, ZeroesOnlyGradientsThatNoProductWrites) {
  const std::map<std::string, std::vector<std::string>> tables = {
      {"gpt2-124m", {"positions.weight"}}, {"llama3-8b", {"embed.weight"}}, {"llama3.2-1b", {}}};
  for (const auto& [name, zeroed_tables] : tables) {
    const RunShape run = shape(job(name, 1, 2, 1));
    const auto train = record_train(run);
    std::set<std::pair<engine::BufferId, uint64_t>> want, got;
    for (const std::string& table : zeroed_tables) {
      const engine::Tensor grad = train->grads.group(run.layout, table);
      want.insert({grad.buffer(), grad.offset()});
    }
    for (size_t i = 0; i < run.layout.buckets().size(); ++i) {
      const uint64_t decayed = static_cast<uint64_t>(run.layout.buckets()[i].decayed) * 4;
      if (decayed < train->grads.buckets()[i].bytes()) want.insert({train->grads.buckets()[i].buffer(), decayed});
    }
    for (const engine::Op& op : train->program.ops()) {
      if (op.name.rfind("grads.zero", 0) != 0) continue;
      got.insert({op.accesses.at(0).buffer, op.accesses.at(0).begin});
    }
    EXPECT_EQ(got, want) << name;
  }
}

// A tied embedding's gradient is written by the head before the embedding adds to it, and once a step.
TEST(TrainProgram, WritesTheTiedHeadBeforeTheEmbeddingAdds) {
  const RunShape run = shape(job("gpt2-124m", 1, 64, 32));
  const auto train = record_train(run);
  const engine::Tensor grad = train->grads.group(run.layout, "embed.weight");
  std::vector<std::string> names;
  for (const engine::Op& op : train->program.ops()) {
    for (const engine::Access& access : op.accesses) {
      if (access.buffer == grad.buffer() && access.begin == grad.offset() && access.writes()) names.push_back(op.name);
    }
  }
  EXPECT_THAT(names, ::testing::ElementsAre("mb0/head.chunk0.wgrad", "mb0/head.chunk1.wgrad", "mb0/embed.backward",
                                            "mb1/head.chunk0.wgrad", "mb1/head.chunk1.wgrad", "mb1/embed.backward"));
}

v1::JobSpec job_of_layers(const std::string& preset, uint32_t layers, v1::MemorySpec::Recompute recompute) {
  v1::JobSpec spec = job(preset, 1, 2, 2);
  spec.mutable_model()->set_layers(layers);
  spec.mutable_memory()->set_recompute(recompute);
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::GPU), ::testing::IsEmpty());
  return spec;
}

double activation_bytes(const v1::JobSpec& spec) {
  const auto train = record_train(shape(spec));
  const auto plan = engine::plan(train->program);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const auto activations = static_cast<size_t>(engine::MemoryClass::kActivations);
  const auto bytes = static_cast<double>(plan->arena_bytes[activations]);
  EXPECT_LE(bytes, 1.02 * static_cast<double>(engine::least_arena_bytes(train->program)[activations]));
  return bytes;
}

// model/transformer.h has the formulas: what one more layer costs a token.
TEST(TrainProgram, KeepsPerLayerWhatTheFormulasSay) {
  for (const char* preset : {"gpt2-124m", "gpt2-1.5b", "llama3-8b", "qwen2.5-0.5b"}) {
    const v1::ModelSpec model = job(preset, 1, 2, 2).model();
    const bool gpt2 = model.architecture() == v1::GPT2;
    const double width = model.hidden(), heads = model.heads();
    const double attention = (2 * heads + 2.0 * model.kv_heads()) * model.head_dim();
    const double before = (gpt2 ? 1.0 : 2.0) * model.ffn(), after = model.ffn();
    const std::map<v1::MemorySpec::Recompute, double> formulas = {
        {v1::MemorySpec::NONE, 2 * (4 * width + attention + before + after) + 4 * heads + (gpt2 ? 16 : 8)},
        {v1::MemorySpec::SELECTIVE, 2 * (2 * width + attention + before) + 4 * heads},
        {v1::MemorySpec::FULL, 2 * width}};
    std::vector<double> totals;
    for (const auto& [recompute, want] : formulas) {
      const double few = activation_bytes(job_of_layers(preset, 4, recompute));
      const double many = activation_bytes(job_of_layers(preset, 12, recompute));
      const double got = (many - few) / 8 / 2048;
      EXPECT_NEAR(got, want, 0.002 * want) << preset << " " << v1::MemorySpec::Recompute_Name(recompute);
      totals.push_back(many);
    }
    EXPECT_GT(totals[0], totals[1]) << preset;
    EXPECT_GT(totals[1], totals[2]) << preset;
  }
}

// Selective repeats no product and no attention; full repeats all layers but the last, without their last product.
TEST(TrainProgram, RecomputesOnlyWhatItsNameSays) {
  const auto names = [](v1::MemorySpec::Recompute recompute) {
    std::vector<std::string> found;
    const auto train = record_train(shape(job_of_layers("llama3-8b", 2, recompute)));
    for (const engine::Op& op : train->program.ops()) {
      if (op.phase == engine::Phase::kRecompute) found.push_back(op.name);
    }
    return found;
  };
  EXPECT_THAT(names(v1::MemorySpec::NONE), ::testing::IsEmpty());
  const std::string again = "mb0/recompute/";
  EXPECT_THAT(
      names(v1::MemorySpec::SELECTIVE),
      ::testing::ElementsAre(again + "layers.1.swiglu", again + "layers.1.mlp_norm", again + "layers.1.attn_norm",
                             again + "layers.0.swiglu", again + "layers.0.mlp_norm", again + "layers.0.attn_norm"));
  EXPECT_THAT(names(v1::MemorySpec::FULL),
              ::testing::ElementsAre(again + "layers.0.attn_norm", again + "layers.0.qkv", again + "layers.0.rope",
                                     again + "layers.0.attention", again + "layers.0.o", again + "layers.0.mlp_norm",
                                     again + "layers.0.gate_up", again + "layers.0.swiglu"));
}

TEST(TrainProgram, StateTakesSixteenBytesAParameterInBf16) {
  const v1::JobSpec spec = job("gpt2-1.5b", 1, 1, 1);
  const auto train = record_train(shape(spec));
  const auto plan = engine::plan(train->program);
  ASSERT_TRUE(plan.ok());
  const auto bytes = [&](engine::MemoryClass c) {
    return static_cast<double>(plan->arena_bytes[static_cast<size_t>(c)]);
  };
  const auto parameters = static_cast<double>(parameter_count(spec.model()));
  EXPECT_NEAR(bytes(engine::MemoryClass::kWeights) / parameters, 2, 0.01);
  EXPECT_NEAR(bytes(engine::MemoryClass::kGrads) / parameters, 4, 0.01);
  EXPECT_NEAR(bytes(engine::MemoryClass::kOptimizer) / parameters, 12, 0.01);
}

// What makes data parallelism overlap: the reduction of an early bucket waits for nothing that comes after it, and the
// backward of the layers before does not wait for the reduction.
TEST(TrainProgram, ReducesBucketsBesideTheRestOfTheBackward) {
  v1::JobSpec spec = job("gpt2-124m", 2, 2, 1);
  const auto train = record_train(shape(spec));
  const auto plan = engine::plan(train->program);
  ASSERT_TRUE(plan.ok());
  const auto& ops = train->program.ops();
  std::vector<engine::OpId> reductions;
  for (engine::OpId op = 0; op < ops.size(); ++op) {
    if (ops[op].name.find("grads.reduce") != std::string::npos) reductions.push_back(op);
  }
  ASSERT_GT(reductions.size(), 3u);
  // Compute ops between the first two reductions wait for no communication.
  for (engine::OpId op = reductions[0] + 1; op < reductions[1]; ++op) {
    EXPECT_EQ(ops[op].lane.kind, engine::LaneKind::kCompute);
    EXPECT_THAT(plan->ops[op].waits, ::testing::IsEmpty()) << ops[op].name;
  }
  EXPECT_THAT(plan->ops[reductions[0]].waits, ::testing::Not(::testing::IsEmpty()));
}

TEST(TrainProgram, OneReplicaCommunicatesNothing) {
  const auto train = record_train(shape(job("gpt2-124m", 1, 2, 1)));
  for (const engine::Op& op : train->program.ops()) EXPECT_EQ(op.lane.kind, engine::LaneKind::kCompute) << op.name;
}

TEST(EvalAndLogitsPrograms, Plan) {
  const RunShape run = shape(job("llama3.2-1b", 2, 4, 2));
  EXPECT_TRUE(engine::plan(record_eval(run)->program).ok());
  EXPECT_TRUE(engine::plan(record_logits(run)->program).ok());
  EXPECT_TRUE(engine::plan(record_init(run)->program).ok());
  EXPECT_TRUE(engine::plan(record_round(run)->program).ok());
}

}  // namespace
}  // namespace telar::plan
