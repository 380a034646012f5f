// What a pipeline schedule makes of a rank's memory: activations of as many micro-batches as it has in flight.
#include "tests/worker/plan/layouts.h"
#include "worker/engine/plan.h"
#include "worker/parallel/schedule_generators.h"
#include "worker/parallel/schedule_memory.h"
#include "worker/plan/programs.h"

namespace telar::plan {
namespace {

using engine::MemoryClass;
using testing::Layout;

constexpr uint32_t kRanks = 4, kLayers = 24;  // Also by 8 stages: 3 each.

v1::JobSpec spec_of(const std::string& schedule, uint32_t virtual_stages, uint32_t micro_batches,
                    v1::MemorySpec::Recompute recompute) {
  v1::ModelSpec model;
  model.set_architecture(v1::LLAMA);
  model.set_layers(kLayers);
  model.set_heads(8);
  model.set_kv_heads(4);
  model.set_hidden(256);
  model.set_ffn(512);
  model.set_vocab(512);
  model.set_tied_head(false);
  Layout layout{"", 1, kRanks, 1, 0, 0, schedule, virtual_stages, micro_batches, recompute};
  v1::JobSpec spec = testing::spec_of(layout, model);
  for (uint32_t s = 0; s < kRanks * virtual_stages; ++s) {
    spec.mutable_parallel()->add_stage_layers(kLayers / kRanks / virtual_stages);
  }
  EXPECT_THAT(resolve(spec, v1::ResourceSpec::GPU), ::testing::IsEmpty());
  return spec;
}

// By rank.
std::vector<double> activation_bytes_of_stages(const v1::JobSpec& spec) {
  std::vector<double> bytes;
  for (const RunShape& shape : testing::shapes_of(spec, 0)) {
    const auto plan = engine::plan(record_train(shape)->program);
    EXPECT_TRUE(plan.ok()) << plan.status();
    bytes.push_back(static_cast<double>(plan->arena_bytes[static_cast<size_t>(MemoryClass::kActivations)]));
  }
  return bytes;
}

double tokens(const v1::JobSpec& spec) { return spec.batch().micro() * spec.batch().sequence_length(); }
// What one stage sends another: 2-byte activations.
double message_bytes(const v1::JobSpec& spec) { return 2.0 * spec.model().hidden() * tokens(spec); }

// model/transformer.h has the formulas: what one micro-batch leaves behind in a stage.
double kept_bytes(const v1::JobSpec& spec, bool head) {
  const v1::ModelSpec& model = spec.model();
  const double width = model.hidden(), heads = model.heads(), ffn = model.ffn();
  const double attention = (2 * heads + 2.0 * model.kv_heads()) * model.head_dim();
  double a_token = 2 * width;
  if (spec.memory().recompute() == v1::MemorySpec::NONE) {
    a_token = 2 * (4 * width + attention + 3 * ffn) + 4 * heads + 8;
  } else if (spec.memory().recompute() == v1::MemorySpec::SELECTIVE) {
    a_token = 2 * (2 * width + attention + 2 * ffn) + 4 * heads;
  }
  const double final_norm = head ? 2 * 2 * width + 4 : 0;
  return (a_token * spec.parallel().stage_layers(0) + final_norm) * tokens(spec);
}

struct Kind {
  const char* schedule;
  uint32_t virtual_stages;
  bool splits_backward;
};
constexpr Kind kKinds[] = {
    {"gpipe", 1, false}, {"1f1b", 1, false}, {"interleaved", 2, false}, {"zb-h1", 1, true}, {"zb-v", 2, true}};

std::vector<parallel::ActivationPeak> in_flight(const Kind& kind, uint32_t micro_batches) {
  return parallel::peak_until_weight_grad(*parallel::make_schedule(
      kind.schedule, kRanks, static_cast<int>(kind.virtual_stages), static_cast<int>(micro_batches)));
}

// A second, third, .. micro-batch in flight takes what it leaves behind, and not much more: messages on their way.
// Beside that there is what one alone needs.
TEST(Pipeline, KeepsAsManyMicroBatchesAsAreInFlight) {
  for (const Kind& kind : kKinds) {
    for (const auto recompute : {v1::MemorySpec::NONE, v1::MemorySpec::SELECTIVE, v1::MemorySpec::FULL}) {
      // Between I and W a recomputed layer is kept as well.
      if (kind.splits_backward && recompute != v1::MemorySpec::NONE) continue;
      const auto alone = activation_bytes_of_stages(spec_of(kind.schedule, kind.virtual_stages, 1, recompute));
      const auto one = in_flight(kind, 1);
      for (const uint32_t micro_batches : {2u, 3u, 8u, 32u}) {
        const v1::JobSpec spec = spec_of(kind.schedule, kind.virtual_stages, micro_batches, recompute);
        const auto bytes = activation_bytes_of_stages(spec);
        const auto many = in_flight(kind, micro_batches);
        for (uint32_t r = 0; r < kRanks; ++r) {
          SCOPED_TRACE(std::string(kind.schedule) + ", " + std::to_string(micro_batches) + " micro-batches, rank " +
                       std::to_string(r) + ", recompute " + v1::MemorySpec::Recompute_Name(recompute));
          // Of the final norm nothing waits for W.
          const bool head = r == kRanks - 1 && kind.virtual_stages == 1 && !kind.splits_backward;
          const double want = static_cast<double>(many[r].value - one[r].value) * kept_bytes(spec, head);
          const double got = bytes[r] - alone[r];
          const double messages = (4 * kRanks * kind.virtual_stages + 8) * message_bytes(spec);
          EXPECT_GE(got, 0.99 * want);
          EXPECT_LE(got, 1.01 * want + messages);
        }
      }
    }
  }
}

// With 1F1B rank r of p has min(m, p - r) of m micro-batches in flight.
TEST(Pipeline, EarlierRanksOf1F1BKeepMore) {
  const v1::JobSpec spec = spec_of("1f1b", 1, 8, v1::MemorySpec::NONE);
  const auto bytes = activation_bytes_of_stages(spec),
             alone = activation_bytes_of_stages(spec_of("1f1b", 1, 1, v1::MemorySpec::NONE));
  for (uint32_t r = 0; r < kRanks; ++r) {
    EXPECT_NEAR((bytes[r] - alone[r]) / kept_bytes(spec, false), kRanks - r - 1, 0.25) << r;
  }
}

// However many micro-batches follow each other, a schedule that has few in flight needs no more memory for them.
TEST(Pipeline, MoreMicroBatchesTakeNoMoreMemory) {
  for (const Kind& kind : kKinds) {
    if (kind.schedule == std::string("gpipe")) continue;
    const auto bytes = [&](uint32_t micro_batches) {
      return activation_bytes_of_stages(
          spec_of(kind.schedule, kind.virtual_stages, micro_batches, v1::MemorySpec::NONE));
    };
    EXPECT_EQ(bytes(32), bytes(48)) << kind.schedule;
  }
}

}  // namespace
}  // namespace telar::plan
