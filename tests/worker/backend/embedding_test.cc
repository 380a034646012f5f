#include "tests/reference/embedding.h"

#include <array>
#include <cmath>

#include "tests/worker/backend/kernel_test.h"
#include "tests/worker/backend/slices.h"

namespace telar::backend::testing {
namespace {

class EmbeddingTest : public KernelTest {};
TELAR_FLOAT_TYPES(EmbeddingTest);

TEST_P(EmbeddingTest, Forward) {
  for (int64_t width : kOddSizes) {
    for (bool with_positions : {false, true}) {
      const int64_t vocab = pick(1, 50), sequence = pick(1, 40), tokens = sequence * pick(1, 3);
      const std::vector<int32_t> id = integers(tokens, 0, static_cast<int32_t>(vocab - 1));
      Tensor table = tensor(GetParam(), {vocab, width}, random(vocab * width));
      Tensor positions = tensor(GetParam(), {sequence + 2, width}, random((sequence + 2) * width));
      Tensor y = filled(GetParam(), {tokens, width}, -9);
      ok(kernels().embedding(stream(), ids(id).in(), {0, vocab, vocab}, table.in(),
                             with_positions ? positions.in() : In(), In(), sequence, y.out()));
      expect_close(
          y.values(),
          reference::embedding(id, table.values(), with_positions ? positions.values() : Values(), sequence, width),
          rounded(GetParam()), "y");
    }
  }
}

TEST_F(EmbeddingTest, ActivationsMayBeOfAnotherTypeThanWeights) {
  Tensor table = tensor(DType::kF32, {9, 20}, random(180));
  Tensor y = filled(DType::kBF16, {4, 20}, 0);
  const std::vector<int32_t> id = {8, 0, 3, 3};
  ok(kernels().embedding(stream(), ids(id).in(), {0, 9, 9}, table.in(), In(), In(), 4, y.out()));
  expect_close(y.values(), reference::embedding(id, table.values(), {}, 4, 20), rounded(DType::kBF16), "y");
}

TEST_P(EmbeddingTest, BackwardAccumulates) {
  for (int64_t width : {int64_t{1}, int64_t{65}, int64_t{300}}) {
    for (bool with_positions : {false, true}) {
      const int64_t vocab = pick(1, 12), sequence = pick(1, 40), tokens = sequence * pick(1, 3);
      const std::vector<int32_t> id = integers(tokens, 0, static_cast<int32_t>(vocab - 1));
      Tensor dy = tensor(GetParam(), {tokens, width}, random(tokens * width));
      Tensor dtable = tensor(DType::kF32, {vocab, width}, random(vocab * width));
      Tensor dpositions = tensor(DType::kF32, {sequence + 2, width}, random((sequence + 2) * width));
      Values want = dtable.values(), want_positions = with_positions ? dpositions.values() : Values();
      reference::embedding_backward(id, dy.values(), sequence, width, want, want_positions);
      ok(kernels().embedding_backward(stream(), ids(id).in(), {0, vocab, vocab}, dy.in(), In(), sequence,
                                      dtable.inout(), with_positions ? dpositions.inout() : InOut()));
      expect_close(dtable.values(), want, {1e-5, 1e-5}, "dtable");
      if (with_positions) expect_close(dpositions.values(), want_positions, {1e-5, 1e-5}, "dpositions");
    }
  }
}

// Rows behind a slice are padding: they may hold anything, and get no gradient.
TEST_P(EmbeddingTest, SlicesOfAVocabulary) {
  for (const auto& [vocab, ranks, width] :
       {std::array<int64_t, 3>{257, 3, 24}, {3, 5, 17}, {40, 1, 64}, {100, 2, 65}}) {
    SCOPED_TRACE(::testing::Message() << vocab << " ids of " << ranks << " ranks");
    const int64_t sequence = pick(20, 40), tokens = 3 * sequence, padding = 2;
    const std::vector<int32_t> id = integers(tokens, 0, static_cast<int32_t>(vocab - 1));
    const Tensor whole = tensor(GetParam(), {vocab, width}, random(vocab * width));
    const Tensor positions = tensor(GetParam(), {sequence, width}, random(sequence * width));
    const Tensor dy = tensor(GetParam(), {tokens, width}, random(tokens * width));
    const Values words = whole.values(), d = dy.values();
    Values sum(tokens * width, 0.0);
    for (const VocabSlice& slice : slices_of(vocab, ranks)) {
      SCOPED_TRACE(slice.first);
      const auto at = words.begin() + slice.first * width;
      const Values mine(at, at + slice.count * width);
      Values padded = mine;
      padded.resize((slice.count + padding) * width, std::nan(""));
      const Tensor table = tensor(GetParam(), {slice.count + padding, width}, padded);
      const Tensor y = filled(GetParam(), {tokens, width}, std::nan(""));
      ok(kernels().embedding(stream(), ids(id).in(), slice, table.in(), positions.in(), In(), sequence, y.out()));
      expect_close(y.values(), reference::embedding(id, mine, positions.values(), sequence, width, slice.first),
                   rounded(GetParam()), "y");
      ok(kernels().embedding(stream(), ids(id).in(), slice, table.in(), In(), In(), sequence, y.out()));
      const Values alone = y.values();
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += alone[i];

      Values before = random(slice.count * width);
      before.resize((slice.count + padding) * width, 7);
      const Tensor dtable = tensor(DType::kF32, {slice.count + padding, width}, before);
      const Tensor dpositions = tensor(DType::kF32, {sequence, width}, random(sequence * width));
      Values want = dtable.values();
      want.resize(slice.count * width);
      Values want_positions = dpositions.values();
      reference::embedding_backward(id, d, sequence, width, want, want_positions, slice.first);
      want.resize((slice.count + padding) * width, 7);
      ok(kernels().embedding_backward(stream(), ids(id).in(), slice, dy.in(), In(), sequence, dtable.inout(),
                                      dpositions.inout()));
      expect_close(dtable.values(), want, {1e-5, 1e-5}, "dtable");
      expect_close(dpositions.values(), want_positions, {1e-5, 1e-5}, "dpositions");
    }
    const Tensor y = filled(GetParam(), {tokens, width}, std::nan(""));
    ok(kernels().embedding(stream(), ids(id).in(), {0, vocab, vocab}, whole.in(), In(), In(), sequence, y.out()));
    EXPECT_EQ(sum, y.values());
  }
}

TEST_F(EmbeddingTest, Refusals) {
  Tensor table = filled(DType::kF32, {5, 8}, 0), y = filled(DType::kF32, {3, 8}, 0);
  Tensor short_positions = filled(DType::kF32, {2, 8}, 0), narrow = filled(DType::kF32, {3, 7}, 0);
  const auto embed = [&](const std::vector<int32_t>& id, In positions, Out out) {
    return kernels().embedding(stream(), ids(id).in(), {0, 5, 5}, table.in(), positions, In(), 3, out);
  };
  if (rig().refuses_values()) {
    expect_refused(embed({0, 5, 1}, In(), y.out()), {"embedding: ids", "got 5 at token 1", "0 to 4"});
    expect_refused(embed({0, 1, -1}, In(), y.out()), {"embedding: ids", "got -1 at token 2"});
    expect_refused(
        kernels().embedding_backward(stream(), ids({0, 9, 0}).in(), {0, 5, 5}, y.in(), In(), 3, table.inout(), InOut()),
        {"embedding_backward: ids", "got 9"});
  }
  expect_refused(embed({0, 1, 2}, short_positions.in(), y.out()), {"embedding: positions", "got 2", "sequence = 3"});
  expect_refused(embed({0, 1, 2}, In(), narrow.out()), {"embedding: y", "got f32 [3, 7]", "[3, 8]"});
  expect_refused(kernels().embedding(stream(), ids({0, 1, 2}).in(), {0, 6, 9}, table.in(), In(), In(), 3, y.out()),
                 {"embedding: slice.count", "got 6", "table's 5 rows"});
  expect_refused(
      kernels().embedding_backward(stream(), ids({0, 1, 2}).in(), {5, 5, 9}, y.in(), In(), 3, table.inout(), {}),
      {"embedding_backward: slice.first", "got 5", "= 4"});
  Tensor half = filled(DType::kBF16, {5, 8}, 0);
  expect_refused(
      kernels().embedding_backward(stream(), ids({0, 1, 0}).in(), {0, 5, 5}, y.in(), In(), 3, half.inout(), InOut()),
      {"embedding_backward: dtable", "got bf16"});
}

}  // namespace
}  // namespace telar::backend::testing
