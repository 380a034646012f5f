#include "worker/parallel/stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace telar::parallel {
namespace {

constexpr int kMostLayers = 40;

int weight(const Stage& stage) { return stage.layers + (stage.embedding ? 1 : 0) + (stage.head ? 1 : 0); }

TEST(SplitStages, HaveEachLayerOnceAndEachALayer) {
  for (int layers = 1; layers <= kMostLayers; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      const std::vector<Stage> split = split_stages(layers, stages);
      ASSERT_EQ(split.size(), static_cast<size_t>(stages));
      int next = 0;
      for (int s = 0; s < stages; ++s) {
        const Stage& stage = split[static_cast<size_t>(s)];
        EXPECT_EQ(stage.first_layer, next) << layers << " over " << stages << ", stage " << s;
        EXPECT_GE(stage.layers, 1) << layers << " over " << stages << ", stage " << s;
        EXPECT_EQ(stage.embedding, s == 0);
        EXPECT_EQ(stage.head, s + 1 == stages);
        next += stage.layers;
      }
      EXPECT_EQ(next, layers);
    }
  }
}

// No split has a lighter heaviest stage, with embedding and head as a layer each.
TEST(SplitStages, AreBalanced) {
  for (int layers = 1; layers <= kMostLayers; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      const std::vector<Stage> split = split_stages(layers, stages);
      int heaviest = 0;
      for (const Stage& stage : split) heaviest = std::max(heaviest, weight(stage));
      const int share = (layers + 2 + stages - 1) / stages;
      EXPECT_EQ(heaviest, stages == 1 ? layers + 2 : std::max(2, share)) << layers << " over " << stages;
    }
  }
}

double heaviest_of(const std::vector<Stage>& split, const EndWeights& ends) {
  double heaviest = 0;
  for (const Stage& stage : split) {
    heaviest = std::max(heaviest, stage.layers + (stage.embedding ? ends.embedding : 0) + (stage.head ? ends.head : 0));
  }
  return heaviest;
}

// The least that any split's heaviest stage weighs, by trying all of them.
double least(int layers, int stages, const EndWeights& ends, std::vector<int> counts = {}) {
  if (static_cast<int>(counts.size()) + 1 == stages) {
    counts.push_back(layers);
    return heaviest_of(given_stages(counts), ends);
  }
  double found = std::numeric_limits<double>::infinity();
  for (int held = 1; held + stages - static_cast<int>(counts.size()) - 1 <= layers; ++held) {
    std::vector<int> more = counts;
    more.push_back(held);
    found = std::min(found, least(layers - held, stages, ends, std::move(more)));
  }
  return found;
}

TEST(SplitStages, AreBalancedWhateverTheEndsWeigh) {
  for (const EndWeights& ends : {EndWeights{0, 2.3}, EndWeights{0, 10}, EndWeights{1.5, 0.25}, EndWeights{4, 4}}) {
    for (int layers = 1; layers <= 10; ++layers) {
      for (int stages = 1; stages <= layers; ++stages) {
        EXPECT_NEAR(heaviest_of(split_stages(layers, stages, ends), ends), least(layers, stages, ends), 1e-6)
            << layers << " over " << stages << ", ends " << ends.embedding << " and " << ends.head;
      }
    }
  }
}

// What does not come out even goes to later stages: the first ones never have more than their part.
TEST(SplitStages, LeaveTheRestToLaterOnes) {
  for (int layers = 2; layers <= kMostLayers; ++layers) {
    for (int stages = 2; 2 * stages <= layers + 2; ++stages) {
      int before = 0, s = 0;
      for (const Stage& stage : split_stages(layers, stages)) {
        before += weight(stage);
        ++s;
        EXPECT_LE(before * stages, (layers + 2) * s) << layers << " over " << stages << ", up to stage " << s - 1;
      }
    }
  }
}

TEST(SplitStages, TakeTheCountsThatAreGiven) {
  const std::vector<Stage> want = {{0, 1, true, false}, {1, 4, false, false}, {5, 2, false, true}};
  EXPECT_EQ(given_stages({1, 4, 2}), want);
  EXPECT_EQ(given_stages({7}), (std::vector<Stage>{{0, 7, true, true}}));
}

// Llama 3 8B with 8 layers: its head is the work of 2.3 of them.
TEST(SplitStages, WeighAHeadByItsWork) {
  EXPECT_EQ(split_stages(8, 2, {0, 2.3}), given_stages({5, 3}));
  EXPECT_EQ(split_stages(8, 4, {0, 2.3}), given_stages({1, 3, 3, 1}));
  EXPECT_EQ(split_stages(8, 8, {0, 2.3}), given_stages({1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(split_stages(3, 2, {0, 10}), given_stages({2, 1}));
}

}  // namespace
}  // namespace telar::parallel
