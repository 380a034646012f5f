// Shapes as models have them, where kernels take their wide paths: rows of whole vectors, padded vocabularies, heads of
// 64 and 128. The other files have the odd sizes.
#include <algorithm>
#include <array>
#include <cmath>

#include "tests/reference/activations.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/embedding.h"
#include "tests/reference/layer_norm.h"
#include "tests/reference/rms_norm.h"
#include "tests/reference/rope.h"
#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

constexpr float kNormEpsilon = 1e-5f;
// Those of models, and what fills teams of one, two, four, eight and sixteen warps or is just too much for them.
constexpr int64_t kWidths[] = {64,   512,  520,  768,  776,  896,  1024, 1032, 1280, 1536,
                               1600, 2048, 2056, 3584, 4096, 5120, 8192, 8200, 16384};

class ModelShapesTest : public KernelTest {
 protected:
  double relative() const { return rounded(GetParam()).relative; }
};
TELAR_FLOAT_TYPES(ModelShapesTest);

TEST_P(ModelShapesTest, RmsNormAndItsGradients) {
  for (int64_t width : kWidths) {
    const int64_t rows = width > 4096 ? 5 : 37;
    Tensor residual = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor delta = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor w = tensor(GetParam(), {width}, random(width)), dy = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor sum = filled(GetParam(), {rows, width}, 0), y = filled(GetParam(), {rows, width}, 0);
    Tensor rstd = filled(DType::kF32, {rows}, 0), dx = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor dw = tensor(DType::kF32, {width}, random(width));
    ok(kernels().rms_norm(stream(), residual.in(), delta.in(), w.in(), kNormEpsilon, sum.out(), y.out(), rstd.out(),
                          Out()));
    const auto want = reference::rms_norm(sum.values(), w.values(), kNormEpsilon, width);
    expect_close(rstd.values(), want.rstd, {1e-6, 1e-5}, "rstd");
    expect_close(y.values(), want.y, {2e-5, relative() * 2}, "y");
    Values want_dx = dx.values(), want_dw = dw.values();
    reference::rms_norm_backward(dy.values(), sum.values(), w.values(), kNormEpsilon, width, want_dx, want_dw);
    ok(kernels().rms_norm_backward(stream(), dy.in(), sum.in(), w.in(), rstd.in(), dx.inout(), dw.inout()));
    expect_close(dx.values(), want_dx, {2e-5, relative() * 2}, "dx");
    expect_close(dw.values(), want_dw, {1e-4, 2e-5}, "dweight");
  }
}

TEST_P(ModelShapesTest, LayerNormAndItsGradients) {
  for (int64_t width : kWidths) {
    const int64_t rows = width > 4096 ? 5 : 37;
    Tensor x = tensor(GetParam(), {rows, width}, random(rows * width)), w = tensor(GetParam(), {width}, random(width));
    Tensor bias = tensor(GetParam(), {width}, random(width)), y = filled(GetParam(), {rows, width}, 0);
    Tensor dy = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor mean = filled(DType::kF32, {rows}, 0), rstd = filled(DType::kF32, {rows}, 0);
    Tensor dx = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor dw = tensor(DType::kF32, {width}, random(width)), dbias = tensor(DType::kF32, {width}, random(width));
    ok(kernels().layer_norm(stream(), x.in(), In(), w.in(), bias.in(), kNormEpsilon, Out(), y.out(), mean.out(),
                            rstd.out(), Out()));
    const auto want = reference::layer_norm(x.values(), w.values(), bias.values(), kNormEpsilon, width);
    expect_close(mean.values(), want.mean, {1e-5, 1e-5}, "mean");
    expect_close(rstd.values(), want.rstd, {1e-5, 2e-5}, "rstd");
    expect_close(y.values(), want.y, {2e-5, relative() * 2}, "y");
    Values want_dx = dx.values(), want_dw = dw.values(), want_dbias = dbias.values();
    reference::layer_norm_backward(dy.values(), x.values(), w.values(), kNormEpsilon, width, want_dx, want_dw,
                                   want_dbias);
    ok(kernels().layer_norm_backward(stream(), dy.in(), x.in(), w.in(), mean.in(), rstd.in(), dx.inout(), dw.inout(),
                                     dbias.inout()));
    expect_close(dx.values(), want_dx, {1e-4, relative() * 4}, "dx");
    expect_close(dw.values(), want_dw, {2e-4, 1e-4}, "dweight");
    expect_close(dbias.values(), want_dbias, {2e-4, 1e-5}, "dbias");
  }
}

// More rows than partial sums, so that each takes several.
TEST_P(ModelShapesTest, NormGradientsOfManyRows) {
  for (const auto& [rows, width] :
       {std::pair<int64_t, int64_t>{5000, 64}, {2200, 768}, {3500, 1024}, {1900, 1600}, {1100, 4096}}) {
    Tensor x = tensor(GetParam(), {rows, width}, random(rows * width)), w = tensor(GetParam(), {width}, random(width));
    Tensor dy = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor dx = filled(GetParam(), {rows, width}, 0), dw = filled(DType::kF32, {width}, 0);
    Tensor rstd = tensor(DType::kF32, {rows}, reference::rms_norm(x.values(), w.values(), kNormEpsilon, width).rstd);
    Values want_dx(rows * width, 0.0), want_dw(width, 0.0);
    reference::rms_norm_backward(dy.values(), x.values(), w.values(), kNormEpsilon, width, want_dx, want_dw);
    ok(kernels().rms_norm_backward(stream(), dy.in(), x.in(), w.in(), rstd.in(), dx.inout(), dw.inout()));
    expect_close(dx.values(), want_dx, {2e-5, relative() * 2}, "dx");
    expect_close(dw.values(), want_dw, {1e-3, 2e-5}, "dweight");
  }
}

// Of GPT-2, Llama 3, Qwen2.5 and Gemma, and two that no model has: without whole vectors, and too wide to be kept.
TEST_P(ModelShapesTest, CrossEntropyOfAPaddedVocabulary) {
  for (const auto& [vocab, pitch] : {std::pair<int64_t, int64_t>{50257, 50304},
                                     {128256, 128256},
                                     {151936, 152064},
                                     {256000, 256008},
                                     {128255, 128257},
                                     {1000003, 1000008}}) {
    SCOPED_TRACE(vocab);
    const int64_t tokens = 3;
    std::vector<int32_t> target = integers(tokens, 0, static_cast<int32_t>(vocab - 1));
    target[0] = static_cast<int32_t>(vocab - 1);
    target[1] = -1;
    Values values = random(tokens * pitch, 5.0);
    for (int64_t t = 0; t < tokens && vocab < pitch; ++t) values[t * pitch + vocab] = std::nan("");  // May be anything.
    Tensor logits = tensor(GetParam(), {tokens, pitch}, values);
    Tensor count = filled(DType::kF32, {1}, 4), loss = filled(DType::kF32, {1}, 0), alone = filled(DType::kF32, {1}, 0);
    const auto want = reference::cross_entropy(target, 4, vocab, pitch, logits.values());
    ok(kernels().cross_entropy_loss(stream(), ids(target).in(), count.in(), vocab, logits.in(), alone.inout()));
    ok(kernels().cross_entropy(stream(), ids(target).in(), count.in(), In(), vocab, logits.inout(), loss.inout()));
    EXPECT_EQ(loss.bytes(), alone.bytes());
    const double longer = vocab > 500000 ? 8 : 1;  // Of sums of a million terms in f32.
    expect_close(loss.values(), {want.loss}, {1e-6, longer * 1e-6}, "loss");
    expect_close(logits.values(), want.dlogits, {longer * 1e-7, longer * relative() * 2}, "dlogits");
  }
}

// Halves, quarters and eighths of those, padded and not.
TEST_P(ModelShapesTest, CrossEntropyOfSlices) {
  for (const auto& [vocab, ranks, pitch] : {std::array<int64_t, 3>{50257, 2, 25152},
                                            {128256, 8, 16032},
                                            {151936, 4, 37984},
                                            {256000, 2, 128001},
                                            {1000003, 2, 500008}}) {
    SCOPED_TRACE(vocab);
    const int64_t tokens = 3, each = (vocab + ranks - 1) / ranks;
    std::vector<int32_t> target = integers(tokens, 0, static_cast<int32_t>(vocab - 1));
    target[0] = static_cast<int32_t>(vocab - 1);
    target[1] = -1;
    Tensor parts = filled(DType::kF32, {ranks, 3, tokens}, std::nan("")), count = filled(DType::kF32, {1}, 4);
    Values whole(tokens * vocab);
    std::vector<Tensor> logits;
    std::vector<VocabSlice> slices;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const VocabSlice slice{rank * each, std::min(each, vocab - rank * each), vocab};
      Values values = random(tokens * pitch, 5.0);
      for (int64_t t = 0; t < tokens && slice.count < pitch; ++t) values[t * pitch + slice.count] = std::nan("");
      const Tensor mine = tensor(GetParam(), {tokens, pitch}, values);
      values = mine.values();
      for (int64_t t = 0; t < tokens; ++t) {
        std::copy_n(values.begin() + t * pitch, slice.count, whole.begin() + t * vocab + slice.first);
      }
      const Out part = range(parts.out(), rank * 3 * tokens, 3 * tokens);
      ok(kernels().softmax_parts(stream(), ids(target).in(), slice, mine.in(), part));
      logits.push_back(mine);
      slices.push_back(slice);
    }
    const auto want = reference::cross_entropy(target, 4, vocab, vocab, whole);
    const double longer = vocab > 500000 ? 8 : 1;  // Of sums of a million terms in f32.
    Tensor alone = filled(DType::kF32, {1}, 0);
    ok(kernels().cross_entropy_loss_parts(stream(), ids(target).in(), count.in(), parts.in(), alone.inout()));
    expect_close(alone.values(), {want.loss}, {1e-6, longer * 1e-6}, "loss");
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const VocabSlice& slice = slices[rank];
      Tensor loss = filled(DType::kF32, {1}, 0);
      ok(kernels().cross_entropy_parts(stream(), ids(target).in(), count.in(), In(), slice, parts.in(),
                                       logits[rank].inout(), loss.inout()));
      EXPECT_EQ(loss.bytes(), alone.bytes());
      Values want_slice(tokens * pitch, 0.0);
      for (int64_t t = 0; t < tokens; ++t) {
        std::copy_n(want.dlogits.begin() + t * vocab + slice.first, slice.count, want_slice.begin() + t * pitch);
      }
      expect_close(logits[rank].values(), want_slice, {longer * 1e-7, longer * relative() * 2}, "dlogits");
    }
  }
}

// More rows than a device takes at once, of a narrow vocabulary and of one that blocks share.
TEST_P(ModelShapesTest, CrossEntropyOfManyRows) {
  for (const auto& [tokens, vocab, pitch] : {std::array<int64_t, 3>{1700, 2999, 3008}, {430, 60000, 60032}}) {
    SCOPED_TRACE(vocab);
    std::vector<int32_t> target = integers(tokens, 0, static_cast<int32_t>(vocab - 1));
    for (int64_t t = 0; t < tokens; t += 3) target[t] = -1;
    Tensor logits = tensor(GetParam(), {tokens, pitch}, random(tokens * pitch, 3.0));
    Tensor count = filled(DType::kF32, {1}, 4), loss = filled(DType::kF32, {1}, 0), alone = filled(DType::kF32, {1}, 0);
    const auto want = reference::cross_entropy(target, 4, vocab, pitch, logits.values());
    ok(kernels().cross_entropy_loss(stream(), ids(target).in(), count.in(), vocab, logits.in(), alone.inout()));
    ok(kernels().cross_entropy(stream(), ids(target).in(), count.in(), In(), vocab, logits.inout(), loss.inout()));
    EXPECT_EQ(loss.bytes(), alone.bytes());
    expect_close(loss.values(), {want.loss}, {1e-6, 1e-6}, "loss");
    expect_close(logits.values(), want.dlogits, {1e-7, relative() * 2}, "dlogits");
  }
}

// One id for most tokens: a run over more segments than a block has threads, and others beside it.
TEST_P(ModelShapesTest, EmbeddingOfAFrequentId) {
  const int64_t tokens = 6000, vocab = 5003, width = 768, sequence = 300, used = 40;
  std::vector<int32_t> id = integers(tokens, 0, static_cast<int32_t>(used - 1));
  for (int64_t t = 0; t < tokens; ++t) {
    if (t % 4 != 0) id[t] = 7;
  }
  id[5] = static_cast<int32_t>(vocab - 1);
  Tensor dy = tensor(GetParam(), {tokens, width}, random(tokens * width));
  Tensor dtable = filled(DType::kF32, {vocab, width}, 0);
  Tensor dpositions = filled(DType::kF32, {sequence, width}, 0.5);
  ok(kernels().embedding_backward(stream(), ids(id).in(), {0, vocab, vocab}, dy.in(), In(), sequence, dtable.inout(),
                                  dpositions.inout()));
  Values want(vocab * width, 0.0), want_positions(sequence * width, 0.5);
  reference::embedding_backward(id, dy.values(), sequence, width, want, want_positions);
  expect_close(dtable.values(), want, {1e-3, 1e-5}, "dtable");
  expect_close(dpositions.values(), want_positions, {1e-5, 1e-5}, "dpositions");

  Tensor table = tensor(GetParam(), {used, width}, random(used * width));
  Tensor positions = tensor(GetParam(), {sequence, width}, random(sequence * width));
  Tensor y = filled(GetParam(), {tokens, width}, 0);
  id[5] = 0;
  ok(kernels().embedding(stream(), ids(id).in(), {0, used, used}, table.in(), positions.in(), In(), sequence, y.out()));
  expect_close(y.values(), reference::embedding(id, table.values(), positions.values(), sequence, width),
               rounded(GetParam()), "y");
}

TEST_P(ModelShapesTest, Swiglu) {
  const int64_t rows = 7, width = 4864;
  Tensor x = tensor(GetParam(), {rows, 2 * width}, random(2 * rows * width, 2.0));
  Tensor dy = tensor(GetParam(), {rows, width}, random(rows * width));
  Tensor y = filled(GetParam(), {rows, width}, 0), dx = filled(GetParam(), {rows, 2 * width}, 0);
  ok(kernels().swiglu(stream(), x.in(), y.out(), Out()));
  ok(kernels().swiglu_backward(stream(), dy.in(), x.in(), dx.out(), Out()));
  expect_close(y.values(), reference::swiglu(x.values(), width), rounded(GetParam(), 2), "y");
  expect_close(dx.values(), reference::swiglu_backward(dy.values(), x.values(), width), rounded(GetParam(), 2), "dx");
}

TEST_P(ModelShapesTest, Rope) {
  for (const AttentionDims& d : {AttentionDims{2, 33, 12, 12, 64}, AttentionDims{1, 40, 8, 2, 128}}) {
    const int64_t tokens = d.batch * d.sequence, width = (d.heads + 2 * d.kv_heads) * d.head_dim;
    Values angles = random(d.sequence * d.head_dim);
    for (double& value : angles) value = std::cos(value);
    Tensor table = tensor(DType::kF32, {d.sequence, d.head_dim}, angles);
    Tensor qkv = tensor(GetParam(), {tokens, width}, random(tokens * width));
    Values want = qkv.values();
    reference::rope(want, width, d.heads + d.kv_heads, d.head_dim, table.values(), d.sequence, false);
    ok(kernels().rope(stream(), d, table.in(), In(), qkv.inout()));
    expect_close(qkv.values(), want, rounded(GetParam()), "turned");
  }
}

// The gradient of a bias that is wide, and of one with more rows than a block takes.
TEST_P(ModelShapesTest, BiasGradient) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{3000, 64}, {70, 3072}}) {
    Tensor dy = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor x = tensor(GetParam(), {rows, 8}, random(rows * 8));
    Tensor dw = filled(DType::kF32, {width, 8}, 0), dbias = filled(DType::kF32, {width}, 0.5);
    ok(kernels().linear_wgrad(stream(), dy.in(), x.in(), true, dw.inout(), dbias.inout()));
    Values want(width, 0.5);
    const Values values = dy.values();
    for (int64_t i = 0; i < rows * width; ++i) want[i % width] += values[i];
    expect_close(dbias.values(), want, {2e-4, 1e-5}, "dbias");
  }
}

}  // namespace
}  // namespace telar::backend::testing
