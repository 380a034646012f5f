// What ZeRO makes of a training step: when weights are gathered and gradients reduced, what runs beside it, and what
// each rank keeps.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tests/worker/plan/layouts.h"
#include "worker/engine/graph.h"
#include "worker/engine/lanes.h"
#include "worker/engine/plan.h"
#include "worker/plan/programs.h"

namespace telar::plan {
namespace {

using engine::MemoryClass;
using engine::OpId;
using parallel::Role;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Gt;
using ::testing::IsEmpty;
using testing::Layout;
using ::testing::Le;
using ::testing::Pair;

// One rank's training step, and the order that its lanes and events keep.
struct Step {
  Step(const v1::JobSpec& spec, int rank, int64_t bucket_elements)
      : shape(testing::shapes_of(spec, bucket_elements)[static_cast<size_t>(rank)]), train(record_train(shape)) {
    auto made = engine::plan(train->program);
    EXPECT_TRUE(made.ok()) << made.status();
    if (!made.ok()) return;
    plan = *std::move(made);
    order = engine::plan_lanes(train->program, engine::build_placed_graph(train->program, plan.offsets)).order;
  }
  const std::vector<engine::Op>& ops() const { return train->program.ops(); }
  double bytes(MemoryClass memory_class) const {
    return static_cast<double>(plan.arena_bytes[static_cast<size_t>(memory_class)]);
  }
  // Calls whose names have `what` in them.
  std::vector<OpId> calls(const std::string& what) const {
    std::vector<OpId> found;
    for (OpId op = 0; op < ops().size(); ++op) {
      if (ops()[op].comm && ops()[op].name.find(what) != std::string::npos) found.push_back(op);
    }
    return found;
  }

  // Kernels whose names begin so.
  std::vector<OpId> kernels(const std::string& prefix) const {
    std::vector<OpId> found;
    for (OpId op = 0; op < ops().size(); ++op) {
      if (!ops()[op].comm && ops()[op].name.rfind(prefix, 0) == 0) found.push_back(op);
    }
    return found;
  }

  RunShape shape;
  std::unique_ptr<TrainProgram> train;
  engine::Plan plan;
  engine::HappensBefore order;
};

// Large enough that padding does not matter.
v1::ModelSpec larger_model() {
  v1::ModelSpec model;
  model.set_architecture(v1::LLAMA);
  model.set_layers(8);
  model.set_heads(8);
  model.set_kv_heads(4);
  model.set_hidden(256);
  model.set_ffn(512);
  model.set_vocab(2048);
  model.set_tied_head(false);
  return model;
}

// A bucket a unit; all layers' buckets are of one size.
Step step_of(const Layout& layout, int rank = 0) { return Step(testing::spec_of(layout), rank, 1); }

std::vector<Layout> sharded(std::vector<uint32_t> zero_stages) {
  std::vector<Layout> all;
  for (const uint32_t zero : zero_stages) {
    for (const uint32_t tensor : {1u, 2u}) {
      for (const auto recompute : {v1::MemorySpec::NONE, v1::MemorySpec::SELECTIVE, v1::MemorySpec::FULL}) {
        for (const auto reduce : {v1::FP32, v1::BF16}) {
          Layout layout{"llama", tensor, 1, 2, zero};
          layout.recompute = recompute;
          layout.reduce = reduce;
          layout.micro_batches = 3;
          all.push_back(layout);
        }
      }
    }
  }
  return all;
}

// --- Weights ---

// What follows a gather: until its slot is gathered into again, and back to back by readers of one slot.
struct Visit {
  engine::BufferId slot;
  std::vector<OpId> readers;
};
// Slots of one size, as the step goes.
struct Slots {
  std::map<engine::BufferId, std::vector<OpId>> readers;  // Since the slot was gathered into.
  std::vector<Visit> visits;

  // The last visits of the slots that were read last.
  std::vector<Visit> latest(size_t count) const {
    std::vector<Visit> found;
    std::set<engine::BufferId> seen;
    for (auto visit = visits.rbegin(); visit != visits.rend() && found.size() < count; ++visit) {
      if (seen.insert(visit->slot).second) found.push_back(*visit);
    }
    return found;
  }
};

// A gather waits for those who read the slot that it takes, and for nobody who read one of the slots that were read
// since: that is how far it runs ahead of the layer that computes.
// Returns how many of such waits it saw.
int expect_gathers_ahead(const Step& step, size_t prefetch) {
  std::map<uint64_t, Slots> of_size;
  int in_turn = 0;
  for (OpId op = 0; op < step.ops().size(); ++op) {
    const bool gathers = step.ops()[op].name.find("weights.gather") != std::string::npos;
    for (const engine::Access& access : step.ops()[op].accesses) {
      const engine::Buffer& buffer = step.train->program.buffers()[access.buffer];
      if (buffer.name.find("weights.slot.") == std::string::npos) continue;
      Slots& slots = of_size[buffer.bytes];
      if (!gathers) {
        if (slots.visits.empty() || slots.visits.back().slot != access.buffer)
          slots.visits.push_back({access.buffer, {}});
        slots.visits.back().readers.push_back(op);
        slots.readers[access.buffer].push_back(op);
        continue;
      }
      for (const Visit& visit : slots.latest(prefetch)) {
        for (const OpId reader : visit.readers) {
          EXPECT_FALSE(step.order.before(reader, op))
              << step.ops()[op].name << " waits for " << step.ops()[reader].name;
        }
      }
      for (const OpId reader : std::exchange(slots.readers[access.buffer], {})) {
        ++in_turn;
        EXPECT_TRUE(step.order.before(reader, op)) << step.ops()[reader].name;
      }
    }
  }
  return in_turn;
}

TEST(Zero3, GathersAheadOfTheLayersThatCompute) {
  for (const uint32_t prefetch : {0u, 1u, 2u, 3u}) {
    for (Layout layout : sharded({3})) {
      layout.prefetch = prefetch;
      SCOPED_TRACE(to_text(layout));
      EXPECT_GT(expect_gathers_ahead(step_of(layout), prefetch), 50);
    }
    for (const std::string schedule : {"1f1b", "zb-h1"}) {
      Layout layout{"llama", 1, 2, 2, 3, 0, schedule, 1, 5};
      layout.prefetch = prefetch;
      SCOPED_TRACE(to_text(layout));
      for (const int rank : {0, 3}) expect_gathers_ahead(step_of(layout, rank), prefetch);
    }
  }
}

TEST(Zero3, HasASlotMoreThanItGathersAhead) {
  for (const uint32_t prefetch : {0u, 1u, 2u, 3u}) {
    for (Layout layout : {Layout{"llama", 1, 1, 2, 3}, Layout{"gpt2", 2, 2, 2, 3, 0, "1f1b", 1, 8},
                          Layout{"llama_tied", 1, 2, 4, 3, 2, "zb-v", 2, 4}}) {
      layout.prefetch = prefetch;
      SCOPED_TRACE(to_text(layout));
      for (uint32_t rank = 0; rank < layout.ranks(); ++rank) {
        const Step step = step_of(layout, static_cast<int>(rank));
        std::map<int64_t, size_t> buckets, slots;  // By elements.
        for (const parallel::Bucket& bucket : step.shape.layout.buckets()) ++buckets[bucket.elements];
        for (const engine::Buffer& buffer : step.train->program.buffers()) {
          if (buffer.name.find("weights.slot.") == std::string::npos) continue;
          EXPECT_EQ(buffer.memory_class, MemoryClass::kCommunication);
          ++slots[static_cast<int64_t>(buffer.bytes / 2)];
        }
        // The positions are read by one of the tensor ranks.
        ASSERT_GE(slots.size() + static_cast<size_t>(step.shape.mesh.tp > 0), buckets.size());
        for (const auto& [elements, count] : slots) {
          ASSERT_TRUE(buckets.contains(elements));
          EXPECT_LE(count, prefetch + 1);
          EXPECT_LE(count, buckets[elements]);
        }
      }
    }
  }
}

// Whole weights are there for the rest of the step once they are.
TEST(Zero1And2, GatherEachBucketOnceAStep) {
  for (const Layout& layout : sharded({1, 2})) {
    SCOPED_TRACE(to_text(layout));
    const Step step = step_of(layout);
    EXPECT_EQ(step.calls("weights.gather").size(), step.shape.layout.buckets().size());
  }
  for (const Layout& layout : sharded({0})) EXPECT_THAT(step_of(layout).calls("weights.gather"), IsEmpty());
}

// What a step reads first is gathered beside the updates of the rest, and waits for none of them.
TEST(Zero1And2, GatherTheFirstBucketBehindItsUpdate) {
  for (const Layout& layout : sharded({1, 2})) {
    SCOPED_TRACE(to_text(layout));
    const Step step = step_of(layout);
    const std::string first = std::to_string(step.shape.layout.buckets().size() - 1);
    const OpId forward = step.kernels("mb0/embed").front();
    int behind = 0;
    for (const OpId gather : step.calls("weights.gather")) {
      const auto bucket_of = [&](OpId op) { return step.ops()[op].name.substr(step.ops()[op].name.rfind('.') + 1); };
      if (bucket_of(gather) != first) {
        EXPECT_LT(gather, step.kernels("optimizer/").front());
        continue;
      }
      ++behind;
      EXPECT_TRUE(step.order.before(forward, gather));
      for (const OpId update : step.kernels("optimizer/adamw.")) {
        EXPECT_EQ(step.order.before(update, gather), bucket_of(update) == first) << step.ops()[update].name;
        EXPECT_FALSE(step.order.before(gather, update)) << step.ops()[update].name;
      }
    }
    EXPECT_EQ(behind, 1);
    // And behind masters that come from elsewhere.
    const auto refresh = record_refresh(step.shape);
    std::vector<std::string> gathers;
    for (const engine::Op& op : refresh->program.ops()) {
      if (op.comm) gathers.push_back(op.name);
    }
    EXPECT_THAT(gathers, ::testing::ElementsAre("weights.gather." + first));
  }
}

// --- Gradients ---

// The embedding's gradient is the last to be there: it is on its way while the first layer's weight gradients run.
TEST(Zero, SendsTheEmbeddingsGradientBesideTheFirstLayersProducts) {
  for (const Layout& layout : sharded({0, 1, 2, 3})) {
    SCOPED_TRACE(to_text(layout));
    const Step step = step_of(layout);
    const std::string bucket = std::to_string(step.shape.layout.buckets().size() - 1);
    const OpId reduction = step.calls((layout.zero == 0 ? "grads.reduce." : "grads.scatter.") + bucket).back();
    int beside = 0;
    for (const OpId product : step.kernels("mb2/layers.0.")) {
      if (step.ops()[product].name.find(".wgrad") == std::string::npos) continue;
      ++beside;
      EXPECT_FALSE(step.order.before(product, reduction)) << step.ops()[product].name;
      EXPECT_FALSE(step.order.before(reduction, product)) << step.ops()[product].name;
    }
    EXPECT_GE(beside, 4);
  }
}

// How often each bucket goes through calls of this name.
std::map<std::string, int> times_called(const Step& step, const std::string& what) {
  std::map<std::string, int> times;
  for (const OpId op : step.calls(what)) ++times[step.ops()[op].name.substr(step.ops()[op].name.find(what))];
  return times;
}

TEST(Zero, ReducesWholeGradientsOnceAStepAndShardsOnceAMicroBatch) {
  for (const uint32_t zero : {0u, 1u, 2u, 3u}) {
    for (const std::string schedule : {"1f1b", "zb-h1", "gpipe"}) {
      for (const uint32_t micro_batches : {1u, 2u, 5u}) {
        for (const uint32_t shard : {0u, 2u}) {
          if (zero == 0 && shard > 0) continue;
          const Layout layout{"llama_tied", 2, 2, 4, zero, shard, schedule, 1, micro_batches};
          SCOPED_TRACE(to_text(layout));
          for (const int rank : {0, 15}) {
            const Step step = step_of(layout, rank);
            const size_t buckets = step.shape.layout.buckets().size();
            const int rounds = zero < 2 ? 1 : static_cast<int>(micro_batches);
            const auto expect = [&](const std::string& what, size_t count, int each) {
              const auto times = times_called(step, what);
              EXPECT_EQ(times.size(), count) << what;
              EXPECT_THAT(times, Each(Pair(::testing::_, each))) << what;
            };
            expect("grads.reduce.", zero == 0 ? buckets : 0, 1);
            expect("grads.scatter.", zero == 0 ? 0 : buckets, rounds);
            expect("grads.replicate.", shard > 0 ? buckets : 0, 1);
            expect("grads.tied.", 1, 1);
            const auto partial = times_called(step, "grads.partial.");
            EXPECT_THAT(partial, ::testing::Not(IsEmpty()));
            EXPECT_THAT(partial, Each(Pair(::testing::_, rounds)));
          }
        }
      }
    }
  }
}

// What makes it overlap: until the next bucket's gradients are there, no kernel waits for a reduction.
TEST(Zero, ReducesBucketsBesideTheRestOfTheBackward) {
  for (const Layout& layout : sharded({0, 1, 2, 3})) {
    SCOPED_TRACE(to_text(layout));
    const Step step = step_of(layout);
    const std::vector<OpId> reductions = step.calls(layout.zero == 0 ? "grads.reduce." : "grads.scatter.");
    ASSERT_EQ(reductions.size(), step.shape.layout.buckets().size() * (layout.zero < 2 ? 1 : layout.micro_batches));
    int beside = 0;
    for (size_t i = 0; i + 1 < reductions.size(); ++i) {
      EXPECT_THAT(step.plan.ops[reductions[i]].waits, ::testing::Not(IsEmpty()));
      for (OpId op = reductions[i] + 1; op < reductions[i + 1]; ++op) {
        if (step.ops()[op].lane.kind != engine::LaneKind::kCompute) continue;
        ++beside;
        EXPECT_FALSE(step.order.before(reductions[i], op))
            << step.ops()[op].name << " waits for " << step.ops()[reductions[i]].name;
      }
    }
    EXPECT_GT(beside, 50);
  }
}

// --- Memory ---

// Elements of parameters that a rank has of a model, padding apart, and the bytes of the state of each, by class.
struct StateBytes {
  double weights = 0, grads = 0, optimizer = 0;
};

// docs and Rajbhandari et al. 2020: bytes a parameter over d replicas.
StateBytes formula(uint32_t zero, double d, bool bf16) {
  const double weights = bf16 ? 2 : 4, optimizer = bf16 ? 12 : 8;  // f32 weights are their own masters.
  return {zero < 3 ? weights : weights / d, zero < 2 ? 4 : 4 / d, zero < 1 ? optimizer : optimizer / d};
}

TEST(Zero, StateTakesTheBytesOfTheFormulas) {
  for (const uint32_t zero : {0u, 1u, 2u, 3u}) {
    for (const uint32_t data : {2u, 4u, 8u}) {
      for (const auto& [tensor, pipeline] : {std::pair(1u, 1u), std::pair(2u, 1u), std::pair(1u, 2u)}) {
        for (const bool bf16 : {true, false}) {
          Layout layout{"", tensor, pipeline, data, zero};
          layout.precision = bf16 ? v1::BF16 : v1::FP32;
          SCOPED_TRACE(to_text(layout));
          const v1::JobSpec spec = testing::spec_of(layout, larger_model());
          for (const int rank : {0, static_cast<int>(layout.ranks()) - 1}) {
            const Step step(spec, rank, 1);
            double parameters = 0;
            for (const auto& group : step.shape.layout.groups()) {
              for (const auto& part : group.parts) parameters += static_cast<double>(part.local().elements());
            }
            // One slot accumulates, the other is being reduced, of each size of bucket.
            std::map<int64_t, int64_t> takes;
            for (const auto& bucket : step.shape.layout.buckets()) takes[bucket.elements] += step.shape.micro_batches;
            double slots = 0;
            for (const auto& [elements, count] : takes) {
              slots += zero < 2 ? 0 : 4 * static_cast<double>(elements * std::min<int64_t>(2, count));
            }
            const StateBytes want = formula(zero, data, bf16);
            const auto expect = [&](MemoryClass memory_class, double bytes) {
              EXPECT_NEAR(step.bytes(memory_class) / bytes, 1, 0.01) << engine::name_of(memory_class);
            };
            expect(MemoryClass::kWeights, want.weights * parameters);
            expect(MemoryClass::kGrads, want.grads * parameters + slots);
            expect(MemoryClass::kOptimizer, want.optimizer * parameters);
          }
        }
      }
    }
  }
}

// Hybrid sharding divides by the ranks of a shard group, not by all replicas.
TEST(Zero, HybridShardsAreOfTheirGroupOnly) {
  const auto bytes = [](uint32_t data, uint32_t shard) {
    const Step step(testing::spec_of({"", 1, 1, data, 3, shard}, larger_model()), 0, 1);
    std::vector<double> all;
    for (const auto c : {MemoryClass::kWeights, MemoryClass::kGrads, MemoryClass::kOptimizer})
      all.push_back(step.bytes(c));
    return all;
  };
  EXPECT_EQ(bytes(8, 2), bytes(2, 2));
  EXPECT_EQ(bytes(8, 4), bytes(4, 4));
  EXPECT_NE(bytes(8, 2), bytes(8, 4));
}

}  // namespace
}  // namespace telar::plan
