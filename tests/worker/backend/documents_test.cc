// Sequences of several documents: positions that count from each one's start, keys that others do not see.
#include <algorithm>
#include <cmath>

#include "tests/reference/attention.h"
#include "tests/reference/embedding.h"
#include "tests/reference/rope.h"
#include "tests/worker/backend/kernel_test.h"
#include "tests/worker/backend/starts.h"

namespace telar::backend::testing {
namespace {

class DocumentsAttentionTest : public KernelTest {
 protected:
  struct Case {
    AttentionDims dims;
    std::vector<int32_t> starts;
  };
  // Around block and chunk edges, heads of odd sizes, documents of one token to the whole sequence.
  std::vector<Case> cases() {
    std::vector<Case> all;
    for (const AttentionDims& d : std::vector<AttentionDims>{{1, 1, 1, 1, 1},
                                                             {2, 63, 2, 1, 8},
                                                             {1, 64, 2, 2, 16},
                                                             {2, 129, 4, 2, 6},
                                                             {1, 321, 2, 1, 64},
                                                             {1, 520, 1, 1, 32}}) {
      for (const int64_t length : {int64_t{1}, int64_t{3}, int64_t{40}, int64_t{200}}) {
        all.push_back({d, random_starts(engine_, d.batch, d.sequence, length)});
      }
    }
    // At the very edges of blocks of 64.
    std::vector<int32_t> edges;
    for (int32_t t = 0; t < 300; ++t) edges.push_back(t < 63 ? 0 : t < 64 ? 63 : t < 128 ? 64 : t < 257 ? 128 : 257);
    all.push_back({{1, 300, 2, 1, 16}, edges});
    return all;
  }
  static reference::AttentionShape shape(const AttentionDims& d) {
    return {d.batch, d.sequence, d.heads, d.kv_heads, d.head_dim};
  }
};
TELAR_FLOAT_TYPES(DocumentsAttentionTest);

TEST_P(DocumentsAttentionTest, Forward) {
  for (const auto& [d, starts] : cases()) {
    const int64_t tokens = d.batch * d.sequence, width = shape(d).width();
    Tensor qkv = tensor(GetParam(), {tokens, width}, random(tokens * width));
    Tensor o = filled(GetParam(), {tokens, d.heads * d.head_dim}, -9);
    Tensor lse = filled(DType::kF32, {d.batch, d.heads, d.sequence}, -9);
    ok(kernels().attention(stream(), d, qkv.in(), ids(starts).in(), o.out(), lse.out()));
    const auto want = reference::attention(shape(d), qkv.values(), starts);
    const double unit = half_unit(GetParam());
    const bool coarse = unit > 0 && rig().rounds_probabilities();
    expect_close(o.values(), want.o, coarse ? Tolerance{2 * unit, 2 * unit} : rounded(GetParam(), 3), "o");
    expect_close(lse.values(), want.lse, {1e-5, 1e-5}, "lse");
  }
}

TEST_P(DocumentsAttentionTest, Backward) {
  for (const auto& [d, starts] : cases()) {
    const int64_t tokens = d.batch * d.sequence, width = shape(d).width(), out = d.heads * d.head_dim;
    Tensor qkv = tensor(GetParam(), {tokens, width}, random(tokens * width));
    const auto forward = reference::attention(shape(d), qkv.values(), starts);
    Tensor o = tensor(GetParam(), {tokens, out}, forward.o);
    Tensor lse = tensor(DType::kF32, {d.batch, d.heads, d.sequence}, forward.lse);
    Tensor d_o = tensor(GetParam(), {tokens, out}, random(tokens * out));
    Tensor dqkv = filled(GetParam(), {tokens, width}, -9);
    ok(kernels().attention_backward(stream(), d, qkv.in(), ids(starts).in(), o.in(), lse.in(), d_o.in(), dqkv.out()));
    const double unit = half_unit(GetParam());
    const Tolerance allowed = unit > 0 ? Tolerance{16 * unit, 6 * unit} : Tolerance{3e-5, 2e-5};
    expect_close(dqkv.values(), reference::attention_backward(shape(d), qkv.values(), d_o.values(), starts), allowed,
                 "dqkv");
  }
}

// To the last bit, and whatever the first document's scores are.
TEST_P(DocumentsAttentionTest, OneDocumentLeavesTheOtherAlone) {
  const AttentionDims d{1, 200, 4, 2, 32};
  const int64_t width = shape(d).width(), out = d.heads * d.head_dim, border = 70;
  std::vector<int32_t> starts(200, 0);
  std::fill(starts.begin() + border, starts.end(), static_cast<int32_t>(border));
  const Values first = random(200 * width), first_gradient = random(200 * out);
  Values second = first, second_gradient = first_gradient;
  const Values other = random(border * width, 20.0), other_gradient = random(border * out, 20.0);
  std::copy(other.begin(), other.end(), second.begin());
  std::copy(other_gradient.begin(), other_gradient.end(), second_gradient.begin());
  const auto run = [&](const Values& values, const Values& gradient) {
    Tensor qkv = tensor(GetParam(), {200, width}, values), d_o = tensor(GetParam(), {200, out}, gradient);
    Tensor o = filled(GetParam(), {200, out}, NAN), lse = filled(DType::kF32, {1, d.heads, 200}, NAN);
    Tensor dqkv = filled(GetParam(), {200, width}, NAN);
    ok(kernels().attention(stream(), d, qkv.in(), ids(starts).in(), o.out(), lse.out()));
    ok(kernels().attention_backward(stream(), d, qkv.in(), ids(starts).in(), o.in(), lse.in(), d_o.in(), dqkv.out()));
    Values all = o.values(), gradients = dqkv.values();
    all.erase(all.begin(), all.begin() + border * out);
    all.insert(all.end(), gradients.begin() + border * width, gradients.end());
    return all;
  };
  const Values a = run(first, first_gradient), b = run(second, second_gradient);
  // Where dq is summed by atomics its last bits are any.
  if (rig().rounds_probabilities() && GetParam() != DType::kF32) {
    expect_close(b, a, {4 * half_unit(GetParam()), 4 * half_unit(GetParam())}, "second document");
  } else {
    EXPECT_EQ(a, b);
  }
}

// As if each stood alone in its sequence.
TEST_F(DocumentsAttentionTest, EachIsWhatItIsAlone) {
  const AttentionDims d{1, 150, 2, 1, 16};
  const int64_t width = shape(d).width(), out = d.heads * d.head_dim;
  const std::vector<int32_t> ends = {1, 64, 130, 150};
  std::vector<int32_t> starts;
  for (int32_t begin = 0; const int32_t end : ends) {
    starts.resize(static_cast<size_t>(end), begin);
    begin = end;
  }
  Tensor qkv = tensor(DType::kF32, {150, width}, random(150 * width));
  Tensor o = filled(DType::kF32, {150, out}, NAN), lse = filled(DType::kF32, {1, 2, 150}, NAN);
  ok(kernels().attention(stream(), d, qkv.in(), ids(starts).in(), o.out(), lse.out()));
  const Values all = qkv.values(), got = o.values();
  for (int32_t begin = 0; const int32_t end : ends) {
    const int64_t n = end - begin;
    Tensor part = tensor(DType::kF32, {n, width}, Values(all.begin() + begin * width, all.begin() + end * width));
    Tensor part_o = filled(DType::kF32, {n, out}, NAN), part_lse = filled(DType::kF32, {1, 2, n}, NAN);
    ok(kernels().attention(stream(), {1, n, 2, 1, 16}, part.in(), In(), part_o.out(), part_lse.out()));
    expect_close(part_o.values(), Values(got.begin() + begin * out, got.begin() + end * out), {1e-5, 1e-5}, "o");
    begin = end;
  }
}

using DocumentsTest = KernelTest;
TELAR_FLOAT_TYPES(DocumentsTest);

TEST_P(DocumentsTest, RopeTurnsByThePositionInTheDocument) {
  const AttentionDims d{2, 37, 3, 1, 10};
  const int64_t tokens = 74, width = 50;
  for (const int64_t length : {1, 5, 100}) {
    const std::vector<int32_t> starts = random_starts(engine_, d.batch, d.sequence, length);
    Tensor table = tensor(DType::kF32, {37, 10}, random(370)), qkv = tensor(GetParam(), {tokens, width}, random(3700));
    Values want = qkv.values();
    reference::rope(want, width, 4, 10, table.values(), d.sequence, false, starts);
    ok(kernels().rope(stream(), d, table.in(), ids(starts).in(), qkv.inout()));
    expect_close(qkv.values(), want, rounded(GetParam(), 3), "turned");
    want = qkv.values();
    reference::rope(want, width, 4, 10, table.values(), d.sequence, true, starts);
    ok(kernels().rope_backward(stream(), d, table.in(), ids(starts).in(), qkv.inout()));
    expect_close(qkv.values(), want, rounded(GetParam(), 9), "turned back");
  }
}

TEST_P(DocumentsTest, EmbeddingAddsThePositionInTheDocument) {
  for (const int64_t width : kOddSizes) {
    const int64_t vocab = pick(1, 50), sequence = pick(1, 200), batch = pick(1, 3), tokens = sequence * batch;
    const std::vector<int32_t> id = integers(tokens, 0, static_cast<int32_t>(vocab - 1));
    const std::vector<int32_t> starts = random_starts(engine_, batch, sequence, pick(1, 40));
    Tensor table = tensor(GetParam(), {vocab, width}, random(vocab * width));
    Tensor positions = tensor(GetParam(), {sequence, width}, random(sequence * width));
    Tensor y = filled(GetParam(), {tokens, width}, -9);
    ok(kernels().embedding(stream(), ids(id).in(), {0, vocab, vocab}, table.in(), positions.in(), ids(starts).in(),
                           sequence, y.out()));
    expect_close(y.values(), reference::embedding(id, table.values(), positions.values(), sequence, width, 0, starts),
                 rounded(GetParam()), "y");

    Tensor dy = tensor(GetParam(), {tokens, width}, random(tokens * width));
    Tensor dtable = tensor(DType::kF32, {vocab, width}, random(vocab * width));
    Tensor dpositions = tensor(DType::kF32, {sequence + 2, width}, random((sequence + 2) * width));
    Values want = dtable.values(), want_positions = dpositions.values();
    reference::embedding_backward(id, dy.values(), sequence, width, want, want_positions, 0, starts);
    ok(kernels().embedding_backward(stream(), ids(id).in(), {0, vocab, vocab}, dy.in(), ids(starts).in(), sequence,
                                    dtable.inout(), dpositions.inout()));
    expect_close(dtable.values(), want, {2e-5, 1e-5}, "dtable");
    expect_close(dpositions.values(), want_positions, {2e-5, 1e-5}, "dpositions");
  }
}

TEST_F(DocumentsTest, RefusesStartsThatCannotBe) {
  const AttentionDims d{2, 3, 1, 1, 2};
  Tensor qkv = filled(DType::kF32, {6, 6}, 0), o = filled(DType::kF32, {6, 2}, 0), lse = filled(DType::kF32, {6}, 0);
  Tensor table = filled(DType::kF32, {3, 2}, 0);
  expect_refused(kernels().attention(stream(), d, qkv.in(), ids({0, 0, 0}).in(), o.out(), lse.out()),
                 {"attention: starts", "[3]", "[6]"});
  expect_refused(kernels().rope(stream(), d, table.in(), lse.in(), qkv.inout()), {"rope: starts", "f32", "i32"});
  if (!rig().refuses_values()) return;
  const auto refused = [&](const std::vector<int32_t>& starts, const std::vector<std::string>& parts) {
    expect_refused(kernels().attention(stream(), d, qkv.in(), ids(starts).in(), o.out(), lse.out()), parts);
  };
  refused({0, 1, 2, 0, 2, 2}, {"attention: starts: got 2 at token 4, wanted 0 to 1"});
  refused({0, 1, 0, 0, 0, 0}, {"got 0 at token 2, wanted 1 to 2"});
  refused({0, 0, -1, 0, 0, 0}, {"got -1 at token 2"});
  expect_refused(kernels().rope_backward(stream(), d, table.in(), ids({0, 0, 0, 1, 1, 1}).in(), qkv.inout()),
                 {"rope_backward: starts: got 1 at token 3, wanted 0 to 0"});
}

}  // namespace
}  // namespace telar::backend::testing
