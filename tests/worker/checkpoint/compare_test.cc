#include "worker/checkpoint/compare.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/checkpoint/memory_files.h"
#include "tests/worker/checkpoint/state.h"

namespace telar::checkpoint {
namespace {

struct Plain {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
  std::vector<backend::Bf16> halves = {};  // Instead of values.
};

class Compare : public testing::Test {
 protected:
  std::unique_ptr<CheckpointReader> make(const std::string& run, const std::vector<Plain>& tensors,
                                         const std::string& spec = "{}") {
    auto writer = CheckpointWriter::create(files_, run, 1, 1, 64).value();
    for (const Plain& one : tensors) {
      const bool half = !one.halves.empty();
      const auto data = half ? std::as_bytes(std::span(one.halves)) : std::as_bytes(std::span(one.values));
      const auto dtype = half ? backend::DType::kBF16 : backend::DType::kF32;
      EXPECT_TRUE(writer->add({one.name, TensorKind::kMaster, dtype, one.shape, data, {}, {}}).ok());
    }
    const auto saved = writer->publish({.seed = 7, .spec_json = spec}, {});
    EXPECT_TRUE(saved.ok()) << saved.status();
    return CheckpointReader::open(files_, saved->path).value();
  }
  MemoryFiles files_;
};

TEST_F(Compare, EqualOnes) {
  ASSERT_TRUE(save(files_, "/a", State(10)).ok());
  ASSERT_TRUE(save(files_, "/b", State(10), 3, 0, 1000).ok());
  const auto a = CheckpointReader::open(files_, "/a/ckpt/step-00000010").value();
  const auto b = CheckpointReader::open(files_, "/b/ckpt/step-00000010").value();
  const auto result = compare_checkpoints(*a, *b);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->tensors.size(), 6u);
  for (const auto& tensor : result->tensors) EXPECT_EQ(tensor.difference, Difference::kNone) << tensor.name;
  EXPECT_TRUE(result->spec.empty());
  EXPECT_TRUE(result->position.empty());
}

TEST_F(Compare, TellsHowMuchEachTensorDiffers) {
  const float nan = std::nanf(""), infinite = std::numeric_limits<float>::infinity();
  const auto a = make("/a", {{"same", {2}, {1, nan}},
                             {"zero", {1}, {0.0f}},
                             {"values", {2, 2}, {1, 2, 3, -4}},
                             {"infinite", {1}, {1}},
                             {"nan", {1}, {nan}},
                             {"shape", {4}, {1, 2, 3, 4}},
                             {"dtype", {2}, {1, 2.001953125f}},
                             {"only_a", {1}, {1}}});
  const auto b = make("/b", {{"same", {2}, {1, nan}},
                             {"zero", {1}, {-0.0f}},
                             {"values", {2, 2}, {1, 2.5, 3, 4}},
                             {"infinite", {1}, {infinite}},
                             {"nan", {1}, {2}},
                             {"shape", {2, 2}, {1, 2, 3, 4}},
                             {"dtype", {2}, {}, {backend::Bf16(1), backend::Bf16(2)}},
                             {"only_b", {1}, {1}}});
  const auto result = compare_checkpoints(*a, *b);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->tensors.size(), 9u);
  const auto expect = [&](size_t at, const char* name, Difference difference, int64_t differing, double absolute,
                          double relative) {
    const TensorComparison& tensor = result->tensors[at];
    EXPECT_EQ(tensor.name, name);
    EXPECT_EQ(tensor.difference, difference) << name;
    EXPECT_EQ(tensor.differing, differing) << name;
    EXPECT_EQ(tensor.max_absolute, absolute) << name;
    EXPECT_DOUBLE_EQ(tensor.max_relative, relative) << name;
  };
  const double inf = std::numeric_limits<double>::infinity();
  expect(0, "same", Difference::kNone, 0, 0, 0);
  expect(1, "zero", Difference::kValues, 0, 0, 0);  // Other bits, equal values.
  expect(2, "values", Difference::kValues, 2, 8, 2);
  expect(3, "infinite", Difference::kValues, 1, inf, 2);
  expect(4, "nan", Difference::kValues, 1, inf, 2);
  expect(5, "shape", Difference::kShape, 0, 0, 0);
  EXPECT_EQ(result->tensors[5].note, "[4] and [2, 2]");
  expect(6, "dtype", Difference::kDType, 1, 0.001953125, 0.001953125 / 2.001953125);
  EXPECT_EQ(result->tensors[6].note, "F32 and BF16");
  expect(7, "only_a", Difference::kOnlyInA, 0, 0, 0);
  expect(8, "only_b", Difference::kOnlyInB, 0, 0, 0);
}

TEST_F(Compare, SpecsByPath) {
  const auto a = make("/a", {}, R"({"name":"x","batch":{"global":8,"micro":2},"gone":1})");
  const auto b = make("/b", {}, R"({"name":"x","batch":{"global":16,"micro":2},"new":[1]})");
  const auto result = compare_checkpoints(*a, *b).value();
  ASSERT_EQ(result.spec.size(), 3u);
  EXPECT_EQ(result.spec[0].path, "batch.global");
  EXPECT_EQ(result.spec[0].a + " " + result.spec[0].b, "8 16");
  EXPECT_EQ(result.spec[1].path + result.spec[1].a + result.spec[1].b, "gone1");
  EXPECT_EQ(result.spec[2].path + result.spec[2].a + result.spec[2].b, "new[1]");
}

TEST_F(Compare, ADamagedOneIsAnError) {
  ASSERT_TRUE(save(files_, "/a", State(10)).ok());
  const auto a = CheckpointReader::open(files_, "/a/ckpt/step-00000010").value();
  std::string* bytes = files_.bytes("/a/ckpt/step-00000010/shard-00000.safetensors");
  bytes->back() = static_cast<char>(bytes->back() ^ 1);
  const auto b = CheckpointReader::open(files_, "/a/ckpt/step-00000010").value();
  EXPECT_EQ(compare_checkpoints(*a, *b).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace telar::checkpoint
