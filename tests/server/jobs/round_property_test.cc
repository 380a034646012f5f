// Random streams of jobs: nothing is given twice, quotas hold (both checked behind every round), nobody starves, and
// the same stream is always served in the same way. And how long a round takes on a large cluster.
#include <cstdlib>
#include <ctime>
#include <random>

#include "tests/server/jobs/toy_cluster.h"

namespace telar::server::jobs {
namespace {

using tests::ToyCluster;
using tests::Wish;

constexpr double kLongestRun = 200;

struct Stream {
  explicit Stream(uint32_t seed) : draw(seed), toy(nodes()) {
    toy.patience = std::chrono::seconds(100);
    toy.queues = {{.name = "a", .weight = 1.0 + below(4)},
                  {.name = "b", .weight = 1.0 + below(4), .quota_devices = below(2) * (2 + below(10))},
                  {.name = "urgent", .quota_devices = 2, .priority = 1, .preempt = true}};
  }
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>(draw() % limit); }
  std::vector<uint32_t> nodes() {
    std::vector<uint32_t> sizes(2 + below(4));
    for (uint32_t& size : sizes) size = 1 + below(8);
    return sizes;
  }
  void submit() {
    Wish wish;
    wish.tensor = 1 + below(3);
    wish.devices = wish.tensor * (1 + below(4));
    wish.queue = below(8) == 0 ? "urgent" : below(2) == 0 ? "a" : "b";
    wish.runs = 10 + below(static_cast<uint32_t>(kLongestRun) - 10);
    if (below(2) == 0) wish.limit = static_cast<uint64_t>(wish.runs) + below(100);
    wish.preemptible = below(4) != 0;
    if (below(6) == 0) {
      wish.array = "projects/p/jobs/array-" + wish.queue;
      wish.array_most = 2;
    }
    toy.submit(wish);
  }
  bool possible(const std::string& id) {
    const Wish& wish = toy.wishes.at(id);
    const uint32_t quota = config_of(toy.queues, wish.queue).quota_devices;
    if (quota > 0 && wish.devices > quota) return false;
    uint32_t groups = 0;
    for (const cluster::Inventory::Node& node : toy.inventory.nodes) groups += node.count / wish.tensor;
    return groups >= wish.devices / wish.tensor;
  }
  void step(std::string& log) {
    toy.pass(10);
    for (const Start& start : toy.round().starts) {
      log += start.id + ":";
      for (const uint32_t device : start.devices) log += std::to_string(device) + ",";
    }
    log += ";";
  }
  bool unfinished() {
    for (const auto& [id, record] : toy.records) {
      if (toy.over.count(id) == 0 && possible(id)) return true;
    }
    return false;
  }

  std::mt19937 draw;
  ToyCluster toy;
};

// What happened, as text; every job that could run did in the end.
std::string play(uint32_t seed) {
  Stream stream(seed);
  std::string log;
  for (int i = 0; i < 120; ++i) {
    for (uint32_t n = stream.below(3); n > 0; --n) stream.submit();
    stream.step(log);
    if (i % 17 == 0) {
      cluster::Inventory::Node& node = stream.toy.inventory.nodes[stream.below(2)];
      node.open = !node.open;
    }
  }
  for (cluster::Inventory::Node& node : stream.toy.inventory.nodes) node.open = true;
  int rounds = 0;
  const int most = static_cast<int>(stream.toy.records.size()) * static_cast<int>(kLongestRun) / 10 + 1000;
  while (stream.unfinished() && rounds < most) {
    stream.step(log);
    ++rounds;
  }
  EXPECT_LT(rounds, most) << "seed " << seed << ": somebody starves";
  for (const auto& [id, record] : stream.toy.records) {
    EXPECT_EQ(stream.toy.over.count(id), stream.possible(id) ? 1u : 0u) << id;
  }
  return log;
}

uint32_t seeds() {
  const char* wanted = std::getenv("TELAR_SCHEDULER_SEEDS");
  return wanted == nullptr ? 40 : static_cast<uint32_t>(std::atoi(wanted));
}

TEST(RoundProperty, RandomStreamsKeepTheRules) {
  for (uint32_t seed = 0; seed < seeds(); ++seed) {
    const std::string first = play(seed);
    EXPECT_EQ(first, play(seed)) << "seed " << seed;
    EXPECT_GT(first.size(), 200u);
    if (HasFailure()) break;
  }
}

// New jobs come for ever, as many as the cluster can do; nobody stays the oldest for long.
TEST(RoundProperty, NobodyStaysTheOldestForLong) {
  for (uint32_t seed = 0; seed < seeds() / 2; ++seed) {
    Stream stream(1000 + seed);
    std::string log, oldest;
    double since = 0, now = 0;
    for (int i = 0; i < 400; ++i, now += 10) {
      if (stream.toy.line.size() < 30) {
        for (uint32_t n = stream.below(4); n > 0; --n) stream.submit();
      }
      stream.step(log);
      std::string front;
      uint64_t order = UINT64_MAX;
      for (const auto& [id, record] : stream.toy.records) {
        if (stream.toy.line.find(record.order()) == nullptr || !stream.possible(id)) continue;
        if (record.order() < order) front = id;
        order = std::min(order, record.order());
      }
      if (front != oldest || front.empty()) since = now;
      oldest = front;
      ASSERT_LE(now - since, 100 + 6 * kLongestRun)
          << "seed " << seed << ": " << oldest << ": " << stream.toy.why(oldest).ShortDebugString();
    }
  }
}

double cpu_milliseconds(const ToyCluster& toy, RoundResult& result) {
  ToyCluster copy = toy;
  const std::clock_t before = std::clock();
  result = copy.plan();
  return 1000.0 * static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
}

// 1,000 nodes of eight devices, nearly all of them held; 10,000 jobs wait.
ToyCluster large(uint32_t kinds) {
  ToyCluster toy(std::vector<uint32_t>(1000, 8));
  toy.queues = {{.name = "a"}, {.name = "b", .weight = 3}, {.name = "c", .priority = 1, .preempt = true}};
  std::mt19937 draw(1);
  for (int i = 0; i < 1980; ++i)
    toy.submit({.devices = 4, .tensor = 2, .queue = "a", .limit = 1000 + draw() % 100'000});
  toy.round();
  toy.pass(500);
  for (uint32_t i = 0; i < 10'000; ++i) {
    const uint32_t kind = i % kinds;
    Wish wish{.devices = 8 * (1 + kind % 50), .tensor = 8, .queue = i % 3 == 0 ? "a" : i % 3 == 1 ? "b" : "c"};
    wish.limit = i % 2 == 0 ? 100 + i : 0;
    const std::string id = toy.submit(wish);
    if (kind < 50) continue;
    toy.records.at(id).mutable_job()->mutable_spec()->mutable_scheduling()->add_exclude_nodes(
        "n" + std::to_string(100 + kind % 900));
    toy.line.put(toy.records.at(id));
  }
  return toy;
}

TEST(RoundSpeed, TenThousandJobsAndAThousandNodes) {
  for (const uint32_t kinds : {50u, 200u}) {
    const ToyCluster toy = large(kinds);
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
      RoundResult result;
      best = std::min(best, cpu_milliseconds(toy, result));
      EXPECT_EQ(result.refusals.size() + result.starts.size(), 10'000u);
    }
    std::printf("a round with 10000 queued jobs of %u kinds on 1000 nodes: %.1f ms of CPU\n", kinds, best);
#ifdef NDEBUG
    EXPECT_LT(best, 50);
#endif
  }
}

}  // namespace
}  // namespace telar::server::jobs
