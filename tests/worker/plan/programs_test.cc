#include "worker/plan/programs.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "worker/engine/comm_check.h"
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
    const RunShape run = shape(job(name, 1, 3, 1));
    const auto train = record_train(run);
    std::multiset<std::pair<engine::BufferId, uint64_t>> want, got;  // Each once a step.
    for (const std::string& table : zeroed_tables) {
      const engine::Tensor grad = train->grads.group(run.layout, table);
      want.insert({grad.buffer(), grad.offset()});
    }
    for (size_t i = 0; i < run.layout.buckets().size(); ++i) {
      const uint64_t decayed = static_cast<uint64_t>(run.layout.buckets()[i].decayed) * 4;
      if (decayed < train->grads.buckets()[i].bytes()) want.insert({train->grads.buckets()[i].buffer(), decayed});
    }
    for (const engine::Op& op : train->program.ops()) {
      if (op.name.find("grads.zero") == std::string::npos) continue;
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

// model/transformer.h has the formulas: what one more layer keeps a token.
std::map<v1::MemorySpec::Recompute, double> kept_bytes(const char* preset) {
  const v1::ModelSpec model = job(preset, 1, 2, 2).model();
  const bool gpt2 = model.architecture() == v1::GPT2;
  const double width = model.hidden(), heads = model.heads();
  const double attention = (2 * heads + 2.0 * model.kv_heads()) * model.head_dim();
  const double before = (gpt2 ? 1.0 : 2.0) * model.ffn(), after = model.ffn();
  return {{v1::MemorySpec::NONE, 2 * (4 * width + attention + before + after) + 4 * heads + (gpt2 ? 16 : 8)},
          {v1::MemorySpec::SELECTIVE, 2 * (2 * width + attention + before) + 4 * heads},
          {v1::MemorySpec::FULL, 2 * width}};
}

TEST(TrainProgram, KeepsPerLayerWhatTheFormulasSay) {
  for (const char* preset : {"gpt2-124m", "gpt2-1.5b", "llama3-8b", "qwen2.5-0.5b"}) {
    std::vector<double> totals;
    for (const auto& [recompute, want] : kept_bytes(preset)) {
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

v1::JobSpec split_job(uint32_t tensor, uint32_t pipeline, const std::string& schedule) {
  v1::JobSpec spec;
  spec.set_name("x");
  spec.mutable_model()->set_preset("llama3-8b");
  spec.mutable_model()->set_layers(6);
  spec.mutable_data()->add_train("/x");
  spec.mutable_batch()->set_global(4);
  spec.mutable_batch()->set_micro(pipeline > 1 ? 1 : 4);
  spec.mutable_batch()->set_sequence_length(4096);
  spec.mutable_schedule()->set_steps(1);
  spec.mutable_resources()->set_devices(tensor * pipeline);
  spec.mutable_parallel()->set_tensor(tensor);
  spec.mutable_parallel()->set_pipeline(pipeline);
  spec.mutable_parallel()->set_schedule(schedule);
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::GPU), ::testing::IsEmpty());
  return spec;
}

RunShape shape_of_rank(const v1::JobSpec& spec, int rank) {
  return run_shape(spec, parallel::Mesh::of_rank(rank, static_cast<int>(spec.parallel().data()),
                                                 static_cast<int>(spec.parallel().pipeline()),
                                                 static_cast<int>(spec.parallel().tensor())));
}

// What makes tensor parallelism overlap: a product of gathered tokens begins with those of the rank and later pieces
// wait for their own tokens only; one whose result is scattered waits for nothing.
TEST(TrainProgram, TensorParallelProductsRunBesideTheirTransfers) {
  const auto train = record_train(shape_of_rank(split_job(2, 1, ""), 1));
  const auto plan = engine::plan(train->program);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::map<std::string, size_t> waits;
  for (size_t op = 0; op < train->program.ops().size(); ++op) {
    waits[train->program.ops()[op].name] = plan->ops[op].waits.size();
  }
  for (const char* product : {"qkv", "gate_up", "o.dgrad", "down.dgrad"}) {
    for (const char* layer : {"0", "3"}) {
      const std::string name = std::string("mb0/layers.") + layer + "." + product + ".part";
      EXPECT_EQ(waits.at(name + "0"), 0u) << name;
      EXPECT_EQ(waits.at(name + "1"), 0u) << name;
      EXPECT_EQ(waits.at(name + "2"), 1u) << name;
      EXPECT_EQ(waits.at(name + "3"), 1u) << name;
      EXPECT_EQ(waits.count(name + "4"), 0u) << name;
    }
  }
  for (const char* product : {"o", "down"}) {
    const std::string name = std::string("mb0/layers.3.") + product;
    for (const char* part : {"0", "1", "2", "3"}) EXPECT_EQ(waits.at(name + ".part" + part), 0u) << name << part;
    EXPECT_EQ(waits.at(name + ".y.scatter.part0"), 1u);
    EXPECT_EQ(waits.at(name + ".y.scatter.sum1"), 1u);
  }
  // These have their weight gradients to run beside.
  EXPECT_EQ(waits.count("mb0/layers.3.qkv.dx.scatter"), 1u);
  EXPECT_EQ(waits.count("mb0/layers.3.gate_up.x.gather"), 1u);
}

TEST(TrainProgram, OverlapTensorIsAChoiceAndSmallPiecesAreNotMade) {
  const auto pieces = [](const v1::JobSpec& spec) {
    const auto train = record_train(shape_of_rank(spec, 0));
    return std::ranges::count_if(train->program.ops(), [](const engine::Op& op) {
      return op.comm && op.comm->kind == engine::CommKind::kExchange;
    });
  };
  v1::JobSpec spec = split_job(2, 1, "");
  EXPECT_EQ(pieces(spec), 6 * 6 * 2);  // Layers; four products and two gradients; pieces of a block.
  spec.mutable_parallel()->set_overlap_tensor(false);
  EXPECT_EQ(pieces(spec), 0);
  spec = split_job(8, 1, "");
  spec.mutable_batch()->set_global(1);
  spec.mutable_batch()->set_micro(1);
  EXPECT_EQ(pieces(spec), 6 * 6 * 7);  // 4096 tokens: blocks of 512.
  spec.mutable_batch()->set_sequence_length(2048);
  EXPECT_EQ(pieces(spec), 0);
}

// Of every rank, with products cut up and without, under schedules that do and don't put weight gradients off.
TEST(TrainProgram, AllRanksCallsFitTogether) {
  for (const auto& [tensor, pipeline, schedule] : std::vector<std::tuple<uint32_t, uint32_t, std::string>>{
           {2, 1, ""}, {4, 1, ""}, {2, 2, "1f1b"}, {2, 2, "zb-h1"}, {2, 2, "zb-v"}}) {
    for (const bool overlap : {true, false}) {
      v1::JobSpec spec = split_job(tensor, pipeline, schedule);
      spec.mutable_parallel()->set_overlap_tensor(overlap);
      std::vector<std::unique_ptr<TrainProgram>> programs;
      std::vector<engine::RankProgram> ranks;
      std::vector<engine::CommGroup> groups;
      for (int rank = 0; rank < static_cast<int>(tensor * pipeline); ++rank) {
        const RunShape run = shape_of_rank(spec, rank);
        programs.push_back(record_train(run));
        ranks.push_back({&programs.back()->program, {}});
        for (const parallel::Group& group : run.groups.list()) {
          const auto found = std::ranges::find(groups, group.name, &engine::CommGroup::name);
          ranks.back().groups.push_back(static_cast<size_t>(found - groups.begin()));
          if (found == groups.end()) groups.push_back({group.name, {group.ranks.begin(), group.ranks.end()}});
        }
      }
      const absl::Status status = engine::check_comm(ranks, groups, engine::CommOrder::kLanes);
      EXPECT_TRUE(status.ok()) << tensor << "x" << pipeline << " " << schedule << ": " << status;
    }
  }
}

// The device holds what two layers keep, however many there are, and the host holds what the others do.
TEST(TrainProgram, OffloadedLayersTakeHostMemoryOnly) {
  for (const char* preset : {"gpt2-124m", "llama3-8b"}) {
    for (const auto& [recompute, kept] : kept_bytes(preset)) {
      const auto arenas = [&](uint32_t layers, bool offload) {
        v1::JobSpec spec = job_of_layers(preset, layers, recompute);
        spec.mutable_memory()->set_offload_activations(offload);
        const auto train = record_train(shape(spec));
        const auto plan = engine::plan(train->program);
        EXPECT_TRUE(plan.ok()) << plan.status();
        return std::pair(static_cast<double>(plan->arena_bytes[static_cast<size_t>(engine::MemoryClass::kActivations)]),
                         static_cast<double>(plan->arena_bytes[static_cast<size_t>(engine::MemoryClass::kHost)]));
      };
      const auto [few, few_host] = arenas(6, true);
      const auto [many, many_host] = arenas(12, true);
      const auto [stayed, no_host] = arenas(12, false);
      const double layer = kept * 2048;
      EXPECT_NEAR(many_host, (12 - 2) * layer, 0.002 * many_host) << preset << " " << recompute;
      EXPECT_NEAR(few_host, (6 - 2) * layer, 0.002 * few_host);
      EXPECT_EQ(no_host, 0);
      EXPECT_NEAR(many, few, 0.01 * few) << preset << " " << recompute;
      EXPECT_LT(many, stayed - (12 - 4) * layer + 0.01 * stayed) << preset << " " << recompute;
    }
  }
}

// A pipeline's first rank keeps micro-batches in flight, and pays for none of them on the device.
TEST(TrainProgram, OffloadedMicroBatchesInFlightTakeHostMemoryOnly) {
  const auto arenas = [](uint32_t micro_batches, bool offload) {
    v1::JobSpec spec = split_job(1, 2, "gpipe");
    spec.mutable_batch()->set_global(micro_batches);
    spec.mutable_memory()->set_offload_activations(offload);
    const auto train = record_train(shape_of_rank(spec, 0));
    const auto plan = engine::plan(train->program);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return std::pair(static_cast<double>(plan->arena_bytes[static_cast<size_t>(engine::MemoryClass::kActivations)]),
                     static_cast<double>(plan->arena_bytes[static_cast<size_t>(engine::MemoryClass::kHost)]));
  };
  const auto [stayed_few, none] = arenas(4, false);
  const auto [stayed_many, none_either] = arenas(8, false);
  const auto [few, few_host] = arenas(4, true);
  const auto [many, many_host] = arenas(8, true);
  const double four = stayed_many - stayed_few;  // What four micro-batches keep.
  EXPECT_NEAR(many_host - few_host, four, 0.1 * four);
  EXPECT_LT(many - few, 0.1 * four);
  EXPECT_LT(many, 0.5 * stayed_many);
}

TEST(EvalAndLogitsPrograms, Plan) {
  const RunShape run = shape(job("llama3.2-1b", 2, 4, 2));
  EXPECT_TRUE(engine::plan(record_eval(run)->program).ok());
  EXPECT_TRUE(engine::plan(record_logits(run)->program).ok());
  EXPECT_TRUE(engine::plan(record_init(run)->program).ok());
  EXPECT_TRUE(engine::plan(record_refresh(run)->program).ok());
}

}  // namespace
}  // namespace telar::plan
