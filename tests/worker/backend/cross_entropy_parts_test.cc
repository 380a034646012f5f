// Cross entropy over slices of a vocabulary: each slice against the fp64 loops over its columns, all of them together
// against those over the whole rows.
#include <array>
#include <cmath>
#include <limits>

#include "tests/reference/cross_entropy.h"
#include "tests/worker/backend/kernel_test.h"
#include "tests/worker/backend/slices.h"

namespace telar::backend::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class CrossEntropyPartsTest : public KernelTest {
 protected:
  // What the ranks of a tensor-parallel group have and make. `whole`: [targets, vocab].
  struct Group {
    std::vector<VocabSlice> slices;
    std::vector<Tensor> logits;
    Values parts;  // [slices, 3, targets], as gathered.
  };
  Group softmax_parts(const std::vector<int32_t>& targets, const Values& whole, int64_t ranks, int64_t padding) {
    const auto tokens = static_cast<int64_t>(targets.size()), vocab = static_cast<int64_t>(whole.size()) / tokens;
    Group group{slices_of(vocab, ranks), {}, {}};
    for (const VocabSlice& slice : group.slices) {
      const int64_t pitch = std::max<int64_t>(1, slice.count + padding);
      Values columns(tokens * pitch, std::nan(""));  // The padding may hold anything.
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < slice.count; ++c) columns[t * pitch + c] = whole[t * vocab + slice.first + c];
      }
      group.logits.push_back(tensor(GetParam(), {tokens, pitch}, columns));
      const std::vector<uint8_t> before = group.logits.back().bytes();
      Tensor parts = filled(DType::kF32, {3, tokens}, std::nan(""));
      ok(kernels().softmax_parts(stream(), ids(targets).in(), slice, group.logits.back().in(), parts.out()));
      EXPECT_EQ(group.logits.back().bytes(), before);
      const Values values = parts.values();
      group.parts.insert(group.parts.end(), values.begin(), values.end());
    }
    return group;
  }
  Tensor gathered(const Group& group) {
    const auto slices = static_cast<int64_t>(group.slices.size());
    return tensor(DType::kF32, {slices, 3, static_cast<int64_t>(group.parts.size()) / (3 * slices)}, group.parts);
  }
  // The loss, the same bits on all ranks, of forward alone, too; group.logits become the gradient.
  double loss_and_gradient(const std::vector<int32_t>& targets, Group& group, double valid, In scale, double before) {
    Tensor count = filled(DType::kF32, {1}, valid), parts = gathered(group), alone = filled(DType::kF32, {1}, before);
    ok(kernels().cross_entropy_loss_parts(stream(), ids(targets).in(), count.in(), parts.in(), alone.inout()));
    for (size_t rank = 0; rank < group.slices.size(); ++rank) {
      Tensor loss = filled(DType::kF32, {1}, before);
      ok(kernels().cross_entropy_parts(stream(), ids(targets).in(), count.in(), scale, group.slices[rank], parts.in(),
                                       group.logits[rank].inout(), loss.inout()));
      EXPECT_EQ(loss.bytes(), alone.bytes()) << "rank " << rank;
    }
    return alone.values()[0];
  }
  // Columns of all slices side by side, after a look at the padding.
  Values joined(const Group& group, int64_t tokens) {
    const int64_t vocab = group.slices.front().vocab;
    Values whole(tokens * vocab, -kInfinity);
    for (size_t rank = 0; rank < group.slices.size(); ++rank) {
      const VocabSlice& slice = group.slices[rank];
      const Values columns = group.logits[rank].values();
      const int64_t pitch = static_cast<int64_t>(columns.size()) / tokens;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < slice.count; ++c) whole[t * vocab + slice.first + c] = columns[t * pitch + c];
        for (int64_t c = slice.count; c < pitch; ++c) EXPECT_EQ(columns[t * pitch + c], 0) << t << ", " << c;
      }
    }
    return whole;
  }
  // As the device stores them.
  Values stored(const Values& values) {
    return tensor(GetParam(), {static_cast<int64_t>(values.size())}, values).values();
  }
};
TELAR_FLOAT_TYPES(CrossEntropyPartsTest);

TEST_P(CrossEntropyPartsTest, LossAndGradientOfSlicesThatDivideByNothing) {
  for (const auto& [vocab, ranks, padding] : {std::array<int64_t, 3>{257, 3, 7},
                                              {5003, 4, 0},
                                              {3, 5, 2},
                                              {1, 2, 1},
                                              {129, 1, 0},
                                              {70001, 2, 3},
                                              {33000, 2, 40}}) {
    SCOPED_TRACE(::testing::Message() << vocab << " ids of " << ranks << " ranks");
    const int64_t tokens = vocab > 10000 ? pick(2, 6) : pick(2, 60);
    std::vector<int32_t> target = integers(tokens, -1, static_cast<int32_t>(vocab - 1));
    target[0] = static_cast<int32_t>(vocab - 1);
    target[1] = -1;
    const Values whole = stored(random(tokens * vocab, 5.0));
    Group group = softmax_parts(target, whole, ranks, padding);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(rank);
      const VocabSlice& slice = group.slices[rank];
      const Values want = reference::softmax_parts(target, slice.first, slice.count, vocab, whole);
      const auto part = [&](const Values& of, int64_t which) {
        return Values(of.begin() + which * tokens, of.begin() + (which + 1) * tokens);
      };
      const Values got(group.parts.begin() + rank * 3 * tokens, group.parts.begin() + (rank + 1) * 3 * tokens);
      EXPECT_EQ(part(got, 0), part(want, 0));
      expect_close(part(got, 1), part(want, 1), {0, slice.count > 10000 ? 5e-6 : 2e-6}, "sums");
      EXPECT_EQ(part(got, 2), part(want, 2));
    }
    double valid = 2;
    for (int32_t id : target) valid += id >= 0;
    const auto want = reference::cross_entropy(target, valid, vocab, vocab, whole);
    const double loss = loss_and_gradient(target, group, valid, In(), 0.25);
    expect_close({loss}, {want.loss + 0.25}, {1e-6, 1e-6}, "loss");
    const Values gradient = joined(group, tokens);
    expect_close(gradient, want.dlogits, {1e-7, rounded(GetParam()).relative * 2}, "dlogits");

    Tensor logits = tensor(GetParam(), {tokens, vocab}, whole), count = filled(DType::kF32, {1}, valid);
    Tensor unsliced = filled(DType::kF32, {1}, 0.25);
    ok(kernels().cross_entropy(stream(), ids(target).in(), count.in(), In(), vocab, logits.inout(), unsliced.inout()));
    expect_close({loss}, unsliced.values(), {1e-6, 1e-6}, "loss beside the whole row's");
    expect_close(gradient, logits.values(), {1e-7, rounded(GetParam()).relative * 2}, "dlogits beside the whole row's");
  }
}

// A vector that is published with a vocabulary-parallel cross entropy: 128 logits in four slices.
TEST_P(CrossEntropyPartsTest, KnownLosses) {
  Values whole;
  for (int i = 0; i < 4 * 128; ++i) whole.push_back(i % 8);
  const std::vector<int32_t> target = {0, 2, 4, 6};
  const Values want = {10.2309, 8.2309, 6.2309, 4.2309};
  for (size_t t = 0; t < target.size(); ++t) {
    std::vector<int32_t> one(4, -1);
    one[t] = target[t];
    Group group = softmax_parts(one, whole, 4, 0);
    EXPECT_NEAR(loss_and_gradient(one, group, 1, In(), 0), want[t], 5e-5);
  }
}

TEST_P(CrossEntropyPartsTest, TheLossScaleScalesTheGradientOnly) {
  const std::vector<int32_t> target = {16, -1, 0, 5};
  const Values whole = stored(random(4 * 17));
  Group group = softmax_parts(target, whole, 3, 1);
  auto want = reference::cross_entropy(target, 7, 17, 17, whole);
  for (double& value : want.dlogits) value *= 4096;
  Tensor scale = filled(DType::kF32, {1}, 4096);
  expect_close({loss_and_gradient(target, group, 7, scale.in(), 0.5)}, {want.loss + 0.5}, {1e-6, 1e-6}, "loss");
  expect_close(joined(group, 4), want.dlogits, {4e-4, rounded(GetParam()).relative * 2}, "dlogits");
}

// Nothing overflows, a slice that is far below the others adds nothing, and one of nothing but -inf even less.
TEST_P(CrossEntropyPartsTest, LargeLogits) {
  const Values whole = {300, 100, -500, -500, -1e4, -1e4, -1e4, -1e4, 0, 0, -kInfinity, -kInfinity};
  const std::vector<int32_t> target = {1, 0, 1};
  Group group = softmax_parts(target, whole, 2, 3);
  expect_close({loss_and_gradient(target, group, 3, In(), 0)}, {(200 + std::log(4.0) + std::log(2.0)) / 3}, {0, 2e-3},
               "loss");
  const double third = 1.0 / 3;
  expect_close(joined(group, 3),
               {third, -third, 0, 0, third / 4 - third, third / 4, third / 4, third / 4, third / 2, -third / 2, 0, 0},
               {1e-6, rounded(GetParam()).relative * 2}, "dlogits");
}

TEST_P(CrossEntropyPartsTest, NoTargetAtAll) {
  Group group = softmax_parts({-1, -1, -1}, random(15), 2, 1);
  EXPECT_EQ(loss_and_gradient({-1, -1, -1}, group, 0, In(), 1.5), 1.5);
  EXPECT_EQ(joined(group, 3), Values(15, 0.0));
}

// On every rank, wherever it is.
TEST_P(CrossEntropyPartsTest, NanShows) {
  for (const double bad : {std::nan(""), -std::nan(""), kInfinity}) {
    Values whole = random(40);
    whole[20] = bad;
    Group group = softmax_parts({3}, whole, 3, 0);
    EXPECT_TRUE(std::isnan(loss_and_gradient({3}, group, 1, In(), 0)));
    const Values gradient = joined(group, 1);
    EXPECT_TRUE(std::isnan(gradient[0]) && std::isnan(gradient[20]) && std::isnan(gradient[39]));
  }
}

TEST_F(CrossEntropyPartsTest, Refusals) {
  Tensor logits = filled(DType::kF32, {2, 5}, 0), one = filled(DType::kF32, {1}, 1),
         parts = filled(DType::kF32, {12}, 0);
  Tensor part = filled(DType::kF32, {3, 2}, 0), odd = filled(DType::kF32, {13}, 0);
  const auto softmax = [&](const VocabSlice& slice, const std::vector<int32_t>& targets, const Tensor& to) {
    return kernels().softmax_parts(stream(), ids(targets).in(), slice, logits.in(), to.out());
  };
  const auto loss = [&](const VocabSlice& slice, const std::vector<int32_t>& targets, const Tensor& from) {
    return kernels().cross_entropy_parts(stream(), ids(targets).in(), one.in(), In(), slice, from.in(), logits.inout(),
                                         one.inout());
  };
  if (rig().refuses_values()) {
    expect_refused(softmax({4, 4, 8}, {7, 8}, part), {"softmax_parts: targets", "got 8 at token 1", "vocab = 8"});
    expect_refused(loss({4, 4, 8}, {7, 8}, parts), {"cross_entropy_parts: targets", "got 8 at token 1", "vocab = 8"});
  }
  expect_refused(softmax({0, 6, 8}, {0, 1}, part), {"softmax_parts: slice.count", "got 6", "5 columns"});
  expect_refused(softmax({0, -1, 8}, {0, 1}, part), {"softmax_parts: slice.count", "got -1"});
  expect_refused(softmax({5, 4, 8}, {0, 1}, part), {"softmax_parts: slice.first", "got 5", "0 to", "= 4"});
  expect_refused(softmax({0, 0, 0}, {0, 1}, part), {"softmax_parts: slice.vocab", "got 0"});
  expect_refused(softmax({0, 4, 8}, {0, 1}, odd), {"softmax_parts: parts", "[13]", "[6]"});
  expect_refused(softmax({0, 4, 8}, {0}, part), {"softmax_parts: logits", "[2, 5]", "[1, any]"});
  expect_refused(loss({0, 6, 8}, {0, 1}, parts), {"cross_entropy_parts: slice.count", "got 6"});
  expect_refused(loss({0, 4, 8}, {0, 1}, odd), {"cross_entropy_parts: parts", "got 13", "3 x 2"});
  expect_refused(kernels().cross_entropy_loss_parts(stream(), ids({0, 1}).in(), one.in(), odd.in(), one.inout()),
                 {"cross_entropy_loss_parts: parts", "got 13", "3 x 2"});
}

}  // namespace
}  // namespace telar::backend::testing
