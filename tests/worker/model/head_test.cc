#include "worker/model/head.h"

#include <gtest/gtest.h>

namespace telar::model {
namespace {

constexpr int64_t kMultiple = Head::kRowMultiple;

TEST(HeadChunks, AreAlikeAndOfWholeTilesForPublishedModels) {
  EXPECT_EQ(Head::chunk_rows(65536, 50304 * 2), 16384);  // GPT-2: four chunks.
  EXPECT_EQ(Head::chunk_rows(8192, 128256 * 2), 8192);   // Llama 3: one.
  EXPECT_EQ(Head::chunk_rows(8192, 151936 * 2), 4096);   // Qwen 2.5: two, though 7,067 rows would fit.
  EXPECT_EQ(Head::chunk_rows(10000, 128256 * 2), 5120);  // 5,000 is no whole number of tiles.
}

TEST(HeadChunks, StayWithinTheBoundAndAreAsFewAsItAllows) {
  for (const int64_t row_bytes : {int64_t{514}, int64_t{100608}, int64_t{256512}, Head::kChunkBytes / 100}) {
    const int64_t limit = Head::kChunkBytes / row_bytes;
    for (const int64_t tokens : {int64_t{1}, int64_t{255}, int64_t{8192}, limit, limit + 1, 3 * limit + 7}) {
      const int64_t rows = Head::chunk_rows(tokens, row_bytes);
      ASSERT_GE(rows, 1);
      EXPECT_LE(rows, limit);
      EXPECT_LE(rows, tokens);
      EXPECT_EQ((tokens + rows - 1) / rows, (tokens + limit - 1) / limit) << tokens << " of " << row_bytes;
      EXPECT_TRUE(rows % kMultiple == 0 || rows == tokens || (rows / kMultiple + 1) * kMultiple > limit)
          << tokens << " of " << row_bytes;
    }
  }
}

TEST(HeadChunks, HoldAtLeastOneRow) {
  EXPECT_EQ(Head::chunk_rows(7, 2 * Head::kChunkBytes), 1);
  EXPECT_EQ(Head::chunk_rows(32, 514), 32);  // A short batch is one chunk, as it is.
}

}  // namespace
}  // namespace telar::model
