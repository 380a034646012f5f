// What must not change a single bit: the executor, the order of ops that do not depend on each other, recompute,
// prefetch, how state is split, the pipeline schedule.
#include "tests/worker/train/layouts.h"
#include "worker/model/transformer.h"

namespace telar::train {
namespace {

using testing::Batch;
using testing::Layout;
using testing::Logical;
using testing::Outcome;
using testing::RankOptions;

constexpr int kSteps = 5;
constexpr auto kNone = v1::MemorySpec::NONE, kSelective = v1::MemorySpec::SELECTIVE, kFull = v1::MemorySpec::FULL;

// `clips`: a clip scale depends on the norm, whose summands are what each rank holds.
Outcome& trained(Outcome& outcome, const Layout& layout, bool clips = true,
                 Replica::Execution execution = Replica::Execution::kLanes) {
  fakes::ThreadCommunicators communicators;
  RankOptions options = testing::options_of(communicators);
  options.execution = execution;
  v1::JobSpec spec = testing::spec_of(layout);
  if (!clips) spec.mutable_optimizer()->set_clip_norm(0);
  testing::run(spec, options, kSteps, outcome);
  return outcome;
}

// What differs, by name.
std::vector<std::string> differing(const Logical& got, const Logical& want) {
  std::vector<std::string> names;
  for (const auto& [name, values] : want.tensors()) {
    const auto found = got.tensors().find(name);
    if (found == got.tensors().end() || found->second != values) names.push_back(name);
  }
  return names;
}

void expect_same_but_norms(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_THAT(differing(got.first_gradients, want.first_gradients), ::testing::IsEmpty());
  EXPECT_THAT(differing(got.masters, want.masters), ::testing::IsEmpty());
  EXPECT_GT(want.masters.tensors().size(), 0u);
}

void expect_same(const Outcome& got, const Outcome& want) {
  expect_same_but_norms(got, want);
  EXPECT_EQ(got.norms, want.norms);
}

void expect_all_same(const std::vector<Layout>& layouts) {
  Outcome first;
  trained(first, layouts[0]);
  for (size_t i = 1; i < layouts.size(); ++i) {
    SCOPED_TRACE(name_of(layouts[i]) + " against " + name_of(layouts[0]));
    Outcome other;
    expect_same(trained(other, layouts[i]), first);
  }
}

Layout in(v1::Precision precision, Layout layout) {
  layout.precision = precision;
  return layout;
}

// All that can go on beside each other.
std::vector<Layout> busy_layouts() {
  return {{"gpt2", 2, 1, 2, 3},
          {"llama", 4},
          {"gpt2", 1, 2, 2, 2, 0, "zb-h1", 0, 1},
          {"llama_tied", 2, 2, 2, 1, 0, "zb-v", 2},
          {"llama", 1, 2, 4, 3, 2, "interleaved", 2, 1}};
}

class BitwiseTest : public ::testing::TestWithParam<v1::Precision> {};
INSTANTIATE_TEST_SUITE_P(Precisions, BitwiseTest, ::testing::Values(v1::FP32, v1::BF16),
                         [](const auto& tested) { return v1::Precision_Name(tested.param); });

TEST_P(BitwiseTest, TheSameRunTwiceAndByTheSequentialExecutor) {
  for (const Layout& layout : busy_layouts()) {
    SCOPED_TRACE(name_of(layout));
    Outcome first, second, third;
    trained(first, in(GetParam(), layout));
    expect_same(trained(second, in(GetParam(), layout)), first);
    expect_same(trained(third, in(GetParam(), layout), true, Replica::Execution::kSequential), first);
  }
}

TEST_P(BitwiseTest, PrefetchDepth) {
  for (const Layout& layout : {Layout{"llama", 1, 1, 4, 3, 0, "", 0, 1}, Layout{"gpt2", 1, 2, 2, 3, 0, "zb-v", 2}}) {
    std::vector<Layout> depths;
    for (const uint32_t prefetch : {0u, 1u, 3u}) {
      depths.push_back(in(GetParam(), layout));
      depths.back().prefetch = prefetch;
    }
    expect_all_same(depths);
  }
}

TEST_P(BitwiseTest, Recompute) {
  for (const Layout& layout : {Layout{"gpt2"}, Layout{"llama", 4}, Layout{"gpt2", 1, 1, 2, 3, 0, "", 0, 1},
                               Layout{"llama", 2, 2, 2, 2, 0, "zb-h1"}, Layout{"gpt2", 1, 2, 1, 0, 0, "zb-v", 2}}) {
    std::vector<Layout> ways;
    for (const auto recompute : {kNone, kSelective, kFull}) {
      ways.push_back(in(GetParam(), layout));
      ways.back().recompute = recompute;
    }
    expect_all_same(ways);
  }
}

std::vector<Layout> by_zero_stage(const std::vector<uint32_t>& stages, Layout layout) {
  std::vector<Layout> all;
  for (const uint32_t stage : stages) {
    layout.zero = stage;
    all.push_back(layout);
  }
  return all;
}

TEST_P(BitwiseTest, ZeroStagesOfOneMicroBatch) {
  for (const Layout& layout :
       {Layout{"gpt2", 1, 1, 2, 0, 0, "", 0, 8}, Layout{"llama", 1, 1, 8, 0, 0, "", 0, 2},
        Layout{"llama_tied", 2, 1, 4, 0, 0, "", 0, 4}, Layout{"gpt2", 1, 2, 4, 0, 0, "1f1b", 0, 4}}) {
    expect_all_same(by_zero_stage({0, 1, 2, 3}, in(GetParam(), layout)));
  }
}

// What is reduced once a step, and what is reduced once a micro-batch.
TEST_P(BitwiseTest, ZeroStagesOfSeveralMicroBatches) {
  for (const Layout& layout : {Layout{"gpt2", 1, 1, 2}, Layout{"llama", 1, 1, 8, 0, 0, "", 0, 1},
                               Layout{"llama_tied", 2, 1, 2}, Layout{"gpt2", 1, 2, 2, 0, 0, "zb-h1"}}) {
    expect_all_same(by_zero_stage({0, 1}, in(GetParam(), layout)));
    expect_all_same(by_zero_stage({2, 3}, in(GetParam(), layout)));
  }
}

// Backwards of a stage run in the order of the micro-batches, so gradients are summed as without a pipeline. Norms
// are not: each rank sums what it has.
TEST_P(BitwiseTest, PipelineSchedulesOfUntiedModels) {
  for (const char* model : {"gpt2_untie", "llama"}) {
    for (const Layout& plain : {Layout{model}, Layout{model, 2, 1, 2, 1, 0, "", 0, 1}}) {
      Outcome want;
      trained(want, in(GetParam(), plain), false);
      for (const auto& [schedule, each] :
           std::map<std::string, uint32_t>{{"gpipe", 0}, {"1f1b", 0}, {"zb-h1", 0}, {"interleaved", 2}, {"zb-v", 2}}) {
        Layout layout = in(GetParam(), plain);
        layout.pipeline = 2;
        layout.schedule = schedule.c_str();
        layout.virtual_stages = each;
        SCOPED_TRACE(name_of(layout));
        Outcome got;
        expect_same_but_norms(trained(got, layout, false), want);
        for (size_t i = 0; i < want.norms.size(); ++i) EXPECT_NEAR(got.norms[i], want.norms[i], 1e-6 * want.norms[i]);
      }
    }
  }
}

// Two ranks' gradients are two summands; so are two micro-batches', but where a table is both embedding and head, to
// which each micro-batch adds twice.
TEST_P(BitwiseTest, TwoReplicasAgainstTwoMicroBatches) {
  for (const char* model : {"gpt2", "gpt2_untie", "llama", "llama_tied", "llama_bias"}) {
    SCOPED_TRACE(model);
    Outcome accumulated, replicated;
    trained(accumulated, in(GetParam(), {model, 1, 1, 1, 0, 0, "", 0, 8}), false);
    trained(replicated, in(GetParam(), {model, 1, 1, 2, 0, 0, "", 0, 8}), false);
    if (!testing::spec_of({model}).model().tied_head()) {
      expect_same_but_norms(replicated, accumulated);
      continue;
    }
    EXPECT_EQ(replicated.losses[0], accumulated.losses[0]);
    for (const std::string& name : differing(replicated.first_gradients, accumulated.first_gradients)) {
      EXPECT_EQ(name, "embed.weight");
    }
  }
}

TEST(InitTest, MastersAreTheSameInEveryLayout) {
  std::vector<Layout> layouts;
  for (const char* model : {"gpt2", "gpt2_untie", "llama", "llama_one_kv", "llama_tied_few_words_narrow"}) {
    for (const uint32_t tensor : {1u, 2u, 4u, 8u}) layouts.push_back({model, tensor});
    layouts.push_back({model, 1, 5, 1, 0, 0, "1f1b"});
    layouts.push_back({model, 1, 2, 1, 0, 0, "interleaved", 2});
    layouts.push_back({model, 1, 2, 1, 0, 0, "zb-v", 2});
    for (const uint32_t zero : {1u, 2u, 3u}) {
      layouts.push_back({model, 1, 1, 8, zero});
      layouts.push_back({model, 2, 2, 2, zero, 0, "zb-v", 2});
      layouts.push_back({model, 2, 1, 4, zero, 2});
    }
    layouts.push_back({model, 4, 2, 1, 0, 0, "zb-h1"});
    layouts.push_back({model, 1, 4, 2, 3, 0, "1f1b"});
  }
  std::map<std::string, Outcome> alone;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(name_of(layout));
    Outcome& want = alone[layout.model];
    if (want.masters.tensors().empty()) testing::run(Layout{layout.model}, 0, want);
    Outcome got;
    testing::run(layout, 0, got);
    EXPECT_THAT(differing(got.masters, want.masters), ::testing::IsEmpty());
    EXPECT_GT(want.masters.tensors().size(), 10u);
  }
}

// In a random topological order of the plan, but with collectives in the order of the program: another one may wait
// for ever, since all members of a group go through it one by one.
std::vector<engine::OpId> random_order(const engine::Program& program, const engine::Plan& plan, uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t ops = program.ops().size();
  std::vector<std::vector<engine::OpId>> successors(ops);
  std::vector<size_t> missing(ops);
  std::vector<engine::OpId> ready, order;
  const auto precedes = [&](engine::OpId before, engine::OpId after) {
    successors[before].push_back(after);
    ++missing[after];
  };
  engine::OpId last_collective = 0;
  bool any = false;
  for (engine::OpId op = 0; op < ops; ++op) {
    for (const engine::OpId before : plan.predecessors[op]) precedes(before, op);
    if (!program.ops()[op].comm.has_value()) continue;
    if (any) precedes(last_collective, op);
    last_collective = op;
    any = true;
  }
  for (engine::OpId op = 0; op < ops; ++op) {
    if (missing[op] == 0) ready.push_back(op);
  }
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const engine::OpId next = ready.back();
    ready.pop_back();
    order.push_back(next);
    for (const engine::OpId after : successors[next]) {
      if (--missing[after] == 0) ready.push_back(after);
    }
  }
  return order;
}

// Three steps of one rank's program by the sequential executor: every byte of gradients, masters and scalars behind
// each. Seed 0: in the order of the program.
std::vector<std::byte> steps_in_order(const v1::JobSpec& spec, int rank, const Replica& replica,
                                      backend::Device& device, const std::vector<backend::Communicator*>& groups,
                                      uint64_t seed) {
  std::vector<std::byte> seen;
  const auto train = plan::record_train(replica.shape());
  const auto plan = engine::plan(train->program);
  EXPECT_TRUE(plan.ok()) << plan.status();
  std::vector<engine::OpId> order;
  if (seed > 0) order = random_order(train->program, *plan, seed);
  const auto executor = engine::create_sequential_executor(train->program, *plan, device, groups, order);
  EXPECT_TRUE(executor.ok()) << executor.status();
  if (!executor.ok()) return seen;
  const auto write = [&](const engine::Tensor& tensor, const auto& values) {
    ASSERT_EQ(tensor.bytes(), values.size() * sizeof(values[0]));
    std::memcpy((*executor)->address(tensor), values.data(), tensor.bytes());
  };
  const auto read = [&](const engine::Tensor& tensor) {
    const std::byte* at = (*executor)->address(tensor);
    seen.insert(seen.end(), at, at + tensor.bytes());
  };
  for (const parallel::Piece& piece : replica.pieces()) {
    std::vector<float> values(static_cast<size_t>(piece.slice.count));
    EXPECT_TRUE(replica.read(Replica::Kind::kMaster, piece, values).ok());
    write(train->state.master.range(static_cast<size_t>(piece.bucket), {piece.first, piece.slice.count}), values);
  }
  std::vector<float> counted(backend::kStepStates);
  counted[backend::kLossScale] = 1;
  write(train->state.step, counted);
  if (train->rope_table.defined()) {
    write(train->rope_table, model::rope_table(spec.model(), spec.batch().sequence_length()));
  }
  write(train->optimizer.step_scalars, std::vector<float>{3e-3f, 0, 0, 0});
  for (int step = 1; step <= 3; ++step) {
    const Batch batch = testing::batch_of(spec, step);
    const auto inputs = testing::share(batch.inputs, replica), targets = testing::share(batch.targets, replica);
    write(train->inputs, inputs);
    write(train->targets, targets);
    const absl::Status status = (*executor)->run();
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
    for (const auto* tensors : {&train->grads, &train->state.master}) {
      for (const engine::Tensor& bucket : tensors->buckets()) read(bucket);
    }
    for (const engine::Tensor& one : {train->loss, train->optimizer.grad_norm, train->valid}) read(one);
  }
  return seen;
}

TEST(OrderTest, RandomTopologicalOrders) {
  for (const Layout& layout : busy_layouts()) {
    SCOPED_TRACE(name_of(layout));
    fakes::ThreadCommunicators communicators;
    const RankOptions options = testing::options_of(communicators);
    const v1::JobSpec spec = testing::spec_of(layout);
    fakes::InProcessStore store;
    std::vector<std::thread> threads;
    for (int r = 0; r < static_cast<int>(layout.ranks()); ++r) {
      threads.emplace_back([&, r] {
        const testing::Rank rank = testing::make_rank(spec, store, r, options);
        ASSERT_NE(rank.replica, nullptr);
        ASSERT_TRUE(rank.replica->init().ok());
        std::vector<backend::Communicator*> groups;
        for (const auto& group : rank.groups) groups.push_back(group.get());
        const auto want = steps_in_order(spec, r, *rank.replica, *rank.device, groups, 0);
        EXPECT_GT(want.size(), 1000u);
        for (uint64_t seed = 1; seed <= 6; ++seed) {
          const uint64_t own = seed * 100 + static_cast<uint64_t>(r);
          EXPECT_EQ(steps_in_order(spec, r, *rank.replica, *rank.device, groups, own), want) << "seed " << own;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace telar::train
