#include "worker/data/permutation.h"

#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace telar::data {
namespace {

TEST(Permutation, IsABijectionOfEverySmallSize) {
  std::mt19937_64 random(1);
  for (uint64_t size = 1; size <= 2000; ++size) {
    const Permutation permutation(size, random());
    std::vector<bool> hit(size);
    for (uint64_t index = 0; index < size; ++index) {
      const uint64_t to = permutation(index);
      ASSERT_LT(to, size);
      ASSERT_FALSE(hit[to]) << "size " << size << " hits " << to << " twice";
      hit[to] = true;
    }
  }
}

TEST(Permutation, HasNoCollisionsAtHugeSizes) {
  for (const uint64_t size : {uint64_t{1} << 40, (uint64_t{1} << 40) + 1, (uint64_t{1} << 61) - 3}) {
    const Permutation permutation(size, 7);
    std::set<uint64_t> seen;
    std::mt19937_64 random(2);
    std::set<uint64_t> asked = {0, size - 1};
    while (asked.size() < 20000) asked.insert(random() % size);
    uint64_t upper_half = 0;
    for (const uint64_t index : asked) {
      const uint64_t to = permutation(index);
      ASSERT_LT(to, size);
      ASSERT_TRUE(seen.insert(to).second);
      upper_half += to >= size / 2;
    }
    EXPECT_NEAR(static_cast<double>(upper_half), 10000, 400);  // Five and a half standard deviations.
  }
}

TEST(Permutation, SpreadsEachIndexEvenlyOverKeys) {
  constexpr uint64_t kSize = 10, kKeys = 20000;
  std::vector<std::vector<int>> count(kSize, std::vector<int>(kSize));
  for (uint64_t key = 0; key < kKeys; ++key) {
    const Permutation permutation(kSize, mix(key));
    for (uint64_t index = 0; index < kSize; ++index) ++count[index][permutation(index)];
  }
  for (const auto& row : count) {
    for (const int n : row) EXPECT_NEAR(n, 2000, 250);  // Standard deviation 42.
  }
}

}  // namespace
}  // namespace telar::data
