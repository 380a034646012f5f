// Ranks that are slow at random moments must neither hang nor compute anything else: seeded layouts, each once without
// and once with delays.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>

#include "tests/worker/train/layouts.h"

namespace telar::train {
namespace {

using testing::Layout;
using testing::Outcome;
using testing::RankOptions;

// Runs of all shards. Continuous integration takes a part; TELAR_DELAY_RUNS asks for more.
constexpr int kRuns = 80, kShards = 4;
constexpr int kSteps = 2;
constexpr std::chrono::seconds kDeadline{60};

int runs() {
  const char* wanted = std::getenv("TELAR_DELAY_RUNS");
  return wanted != nullptr ? std::atoi(wanted) : kRuns;
}

// Ends the process, with `what` on stderr, if it lives for longer than kDeadline: threads that hang cannot be joined.
class Watchdog {
 public:
  explicit Watchdog(std::string what) : thread_([this, what] { watch(what); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void watch(const std::string& what) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kDeadline, [this] { return over_; })) return;
    std::fprintf(stderr, "hangs: %s\n", what.c_str());
    std::abort();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;  // Guarded by mutex_.
  std::thread thread_;
};

// Any layout of at most 8 ranks, all kinds alike; with several ranks, or there is nothing to be late for.
Layout random_layout(std::mt19937_64& random) {
  const auto one_of = [&](const auto& list) { return list[random() % list.size()]; };
  Layout layout;
  layout.model = one_of(std::vector<const char*>{"gpt2", "llama", "llama_tied", "llama_bias"});
  do {
    layout.tensor = one_of(std::vector<uint32_t>{1, 1, 2, 4, 8});
    layout.pipeline = one_of(std::vector<uint32_t>{1, 2, 2, 3, 4, 5});
    layout.data = one_of(std::vector<uint32_t>{1, 2, 2, 4, 8});
  } while (layout.ranks() > 8 || layout.ranks() == 1);
  if (layout.pipeline > 1) {
    layout.schedule = one_of(std::vector<const char*>{"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"});
    const std::string name = layout.schedule;
    if (name == "interleaved" || name == "zb-v") {
      layout.pipeline = 2;
      layout.virtual_stages = 2;
      if (layout.ranks() > 8) layout.tensor = 1;
    }
  }
  layout.zero = static_cast<uint32_t>(random() % 4);
  if (layout.zero > 0 && layout.data >= 4 && random() % 2 == 0) layout.shard = layout.data / 2;
  if (layout.zero == 3) layout.prefetch = static_cast<uint32_t>(random() % 4);
  layout.micro = one_of(std::vector<uint32_t>{1, 2, 2, 4});
  while (testing::kGlobal / layout.data % layout.micro != 0) layout.micro /= 2;
  layout.recompute = one_of(std::vector{v1::MemorySpec::NONE, v1::MemorySpec::SELECTIVE, v1::MemorySpec::FULL});
  return layout;
}

void compare(uint64_t seed) {
  std::mt19937_64 random(seed);
  const Layout layout = random_layout(random);
  const std::string what = "seed " + std::to_string(seed) + ": " + name_of(layout);
  SCOPED_TRACE(what);
  const Watchdog watchdog(what);
  const v1::JobSpec spec = testing::spec_of(layout);
  Outcome prompt, late;
  fakes::ThreadCommunicators first, second;
  testing::run(spec, testing::options_of(first), kSteps, prompt);
  // Through sockets now and then. Some delays are longer than a whole step, most are as long as an op.
  RankOptions options = testing::options_of(second);
  if (seed % 10 == 0) options.device = testing::cpu_device;
  const bool long_ones = random() % 4 == 0;
  options.delays = fakes::Delays{
      .seed = seed, .chance = long_ones ? 0.02 : 0.2, .longest = std::chrono::microseconds(long_ones ? 20000 : 500)};
  testing::run(spec, options, kSteps, late);
  EXPECT_EQ(late.losses, prompt.losses);
  EXPECT_EQ(late.norms, prompt.norms);
  EXPECT_TRUE(late.first_gradients == prompt.first_gradients);
  EXPECT_TRUE(late.masters == prompt.masters);
  EXPECT_EQ(prompt.losses.size(), static_cast<size_t>(kSteps));
}

class DelaysTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Shards, DelaysTest, ::testing::Range(0, kShards));

TEST_P(DelaysTest, ChangeNothing) {
  for (int seed = GetParam(); seed < runs(); seed += kShards) {
    compare(static_cast<uint64_t>(seed));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace telar::train
