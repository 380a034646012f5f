#include "tests/reference/attention.h"

#include <cmath>
#include <cstdlib>

#include "tests/worker/backend/cuda/library_rig.h"
#include "tests/worker/backend/starts.h"

namespace telar::backend::testing {
namespace {

class CudaAttention : public LibraryTest {
 protected:
  std::vector<AttentionDims> dims() {
    std::vector<AttentionDims> all = {{1, 1, 1, 1, 1},     {2, 3, 2, 1, 8},    {1, 63, 1, 1, 17},  {1, 64, 2, 2, 16},
                                      {1, 65, 3, 1, 32},   {2, 129, 4, 2, 6},  {1, 257, 2, 1, 64}, {1, 321, 1, 1, 128},
                                      {2, 256, 8, 2, 64},  {2, 200, 8, 2, 64}, {2, 256, 6, 6, 64}, {1, 256, 4, 1, 96},
                                      {1, 100, 2, 1, 200}, {1, 70, 2, 1, 256}, {1, 70, 1, 1, 300}};
    for (int i = 0; i < 4; ++i) {
      const int64_t kv = pick(1, 3);
      all.push_back({pick(1, 2), pick(1, 300), kv * pick(1, 3), kv, 2 * pick(1, 40)});
    }
    all.push_back({1, 1024, 12, 12, 64});  // GPT-2 124M.
    all.push_back({1, 512, 32, 8, 128});   // Llama 3 8B.
    return all;
  }
  static reference::AttentionShape shape(const AttentionDims& d) {
    return {d.batch, d.sequence, d.heads, d.kv_heads, d.head_dim};
  }
  static ::testing::Message name(const AttentionDims& d) {
    return ::testing::Message() << "batch " << d.batch << ", sequence " << d.sequence << ", heads " << d.heads << "/"
                                << d.kv_heads << ", head_dim " << d.head_dim;
  }
  // cuDNN rounds probabilities and score gradients to 16 bits before it multiplies with them.
  static bool is_fused(const AttentionDims& d, DType dtype) {
    return dtype != DType::kF32 && d.head_dim % 8 == 0 && d.head_dim >= 32 && d.head_dim <= 256 && d.sequence >= 64;
  }
  // Of the heads [from, to) of rows of `heads`: |got - want| / |want| as vectors.
  static double relative_error(const Values& got, const Values& want, int64_t dim, int64_t heads, int64_t from,
                               int64_t to) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const int64_t head = static_cast<int64_t>(i) / dim % heads;
      if (head < from || head >= to) continue;
      difference += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaAttention, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16));

TEST_P(CudaAttention, Forward) {
  for (const AttentionDims& d : dims()) {
    SCOPED_TRACE(name(d));
    const int64_t tokens = d.batch * d.sequence, width = shape(d).width();
    Tensor qkv = tensor(GetParam(), {tokens, width}, random(tokens * width));
    Tensor o = filled(GetParam(), {tokens, d.heads * d.head_dim}, NAN);
    Tensor lse = filled(DType::kF32, {d.batch, d.heads, d.sequence}, NAN);
    ok(ops().attention(stream(), d, qkv.in(), In(), o.out(), lse.out()));
    const auto want = reference::attention(shape(d), qkv.values());
    const bool fused = is_fused(d, GetParam());
    const double unit = half_unit(GetParam());
    expect_close(o.values(), want.o, fused ? Tolerance{5 * unit, 4 * unit} : rounded(GetParam(), 3), "o");
    expect_close(lse.values(), want.lse, fused ? Tolerance{1e-4, 1e-4} : Tolerance{1e-5, 1e-5}, "lse");
    EXPECT_LT(relative_error(o.values(), want.o, d.head_dim, d.heads, 0, d.heads), 1e-2);
    rig().release();
  }
}

TEST_P(CudaAttention, Backward) {
  for (const AttentionDims& d : dims()) {
    SCOPED_TRACE(name(d));
    const int64_t tokens = d.batch * d.sequence, width = shape(d).width(), out = d.heads * d.head_dim;
    Tensor qkv = tensor(GetParam(), {tokens, width}, random(tokens * width));
    const auto forward = reference::attention(shape(d), qkv.values());
    Tensor o = tensor(GetParam(), {tokens, out}, forward.o);
    Tensor lse = tensor(DType::kF32, {d.batch, d.heads, d.sequence}, forward.lse);
    Tensor d_o = tensor(GetParam(), {tokens, out}, random(tokens * out));
    Tensor dqkv = filled(GetParam(), {tokens, width}, NAN);
    ok(ops().attention_backward(stream(), d, qkv.in(), In(), o.in(), lse.in(), d_o.in(), dqkv.out()));
    const Values want = reference::attention_backward(shape(d), qkv.values(), d_o.values()), got = dqkv.values();
    const double unit = half_unit(GetParam());
    Tolerance allowed = unit > 0 ? Tolerance{8 * unit, 5 * unit} : Tolerance{5e-5, 5e-5};
    if (is_fused(d, GetParam())) {
      allowed = {25 * unit, 8 * unit};
      const int64_t k = d.heads, v = k + d.kv_heads, all = v + d.kv_heads;
      EXPECT_LT(relative_error(got, want, d.head_dim, all, 0, k), 1e-2) << "dq";
      EXPECT_LT(relative_error(got, want, d.head_dim, all, k, v), 1e-2) << "dk";
      EXPECT_LT(relative_error(got, want, d.head_dim, all, v, all), 1e-2) << "dv";
    }
    expect_close(got, want, allowed, "dqkv");
    rig().release();
  }
}

// Both directions at random borders, of the sizes that cuDNN takes and of others; several times, as documents fall
// differently on its tiles each time.
TEST_P(CudaAttention, DocumentsDoNotSeeEachOther) {
  std::mt19937_64 random_borders(7);
  for (const AttentionDims& d : std::vector<AttentionDims>{{2, 256, 8, 2, 64},
                                                           {2, 200, 6, 6, 64},
                                                           {1, 321, 4, 1, 128},
                                                           {3, 129, 2, 1, 96},
                                                           {1, 1024, 4, 4, 64},
                                                           {1, 640, 2, 1, 256},
                                                           {2, 97, 3, 1, 18}}) {
    for (const int64_t length : {1, 20, 150, 5000}) {
      SCOPED_TRACE(name(d) << ", documents of about " << length);
      const std::vector<int32_t> borders = random_starts(random_borders, d.batch, d.sequence, length);
      const int64_t tokens = d.batch * d.sequence, width = shape(d).width(), out = d.heads * d.head_dim;
      Tensor starts = tensor(DType::kI32, {tokens}, Values(borders.begin(), borders.end()));
      Tensor qkv = tensor(GetParam(), {tokens, width}, random(tokens * width));
      Tensor o = filled(GetParam(), {tokens, out}, NAN), lse = filled(DType::kF32, {d.batch, d.heads, d.sequence}, NAN);
      ok(ops().attention(stream(), d, qkv.in(), starts.in(), o.out(), lse.out()));
      const auto want = reference::attention(shape(d), qkv.values(), borders);
      const bool fused = is_fused(d, GetParam());
      const double unit = half_unit(GetParam());
      expect_close(o.values(), want.o, fused ? Tolerance{8 * unit, 4 * unit} : rounded(GetParam(), 3), "o");
      expect_close(lse.values(), want.lse, fused ? Tolerance{1e-4, 1e-4} : Tolerance{1e-5, 1e-5}, "lse");
      EXPECT_LT(relative_error(o.values(), want.o, d.head_dim, d.heads, 0, d.heads), 1e-2);

      Tensor d_o = tensor(GetParam(), {tokens, out}, random(tokens * out));
      Tensor dqkv = filled(GetParam(), {tokens, width}, NAN);
      ok(ops().attention_backward(stream(), d, qkv.in(), starts.in(), o.in(), lse.in(), d_o.in(), dqkv.out()));
      const Values want_d = reference::attention_backward(shape(d), qkv.values(), d_o.values(), borders);
      const Values got = dqkv.values();
      const int64_t k = d.heads, v = k + d.kv_heads, all = v + d.kv_heads;
      // Of documents of one token nothing reaches a query or a key; what is left is rounding.
      if (length > 1) {
        EXPECT_LT(relative_error(got, want_d, d.head_dim, all, 0, k), 2e-2) << "dq";
        EXPECT_LT(relative_error(got, want_d, d.head_dim, all, k, v), 2e-2) << "dk";
      }
      EXPECT_LT(relative_error(got, want_d, d.head_dim, all, v, all), 1e-2) << "dv";
      const Tolerance allowed = fused      ? Tolerance{40 * unit, 10 * unit}
                                : unit > 0 ? Tolerance{16 * unit, 6 * unit}
                                           : Tolerance{5e-5, 5e-5};
      expect_close(got, want_d, allowed, "dqkv");
      rig().release();
    }
  }
}

// Plans are made with other borders than a graph runs with: they are data.
TEST_F(CudaAttention, BordersOfACapturedCallMayChange) {
  std::mt19937_64 random_borders(8);
  for (const AttentionDims& d : {AttentionDims{2, 256, 4, 2, 64}, AttentionDims{3, 250, 3, 1, 64}}) {
    const int64_t tokens = d.batch * d.sequence, width = shape(d).width(), out = d.heads * d.head_dim;
    Tensor qkv = tensor(DType::kBF16, {tokens, width}, random(tokens * width));
    Tensor d_o = tensor(DType::kBF16, {tokens, out}, random(tokens * out));
    Tensor o = filled(DType::kBF16, {tokens, out}, NAN), lse = filled(DType::kF32, {tokens * d.heads}, NAN);
    Tensor dqkv = filled(DType::kBF16, {tokens, width}, NAN), starts = filled(DType::kI32, {tokens}, 0);
    const auto step = [&] {
      absl::Status status = ops().attention(stream(), d, qkv.in(), starts.in(), o.out(), lse.out());
      status.Update(
          ops().attention_backward(stream(), d, qkv.in(), starts.in(), o.in(), lse.in(), d_o.in(), dqkv.out()));
      return status;
    };
    ok(step());
    const std::vector<int32_t> borders = random_starts(random_borders, d.batch, d.sequence, 60);
    rig().upload(borders.data(), starts.in().data, borders.size() * sizeof(int32_t));
    run_captured(step);
    const auto want = reference::attention(shape(d), qkv.values(), borders);
    EXPECT_LT(relative_error(o.values(), want.o, d.head_dim, d.heads, 0, d.heads), 1e-2);
    const Values want_d = reference::attention_backward(shape(d), qkv.values(), d_o.values(), borders);
    EXPECT_LT(relative_error(dqkv.values(), want_d, 1, 1, 0, 1), 2e-2);
    rig().release();
  }
}

// Without the alignment that cuDNN wants.
TEST_F(CudaAttention, OddAddresses) {
  const AttentionDims d{1, 130, 2, 1, 64};
  rig().set_aligned(false);
  Tensor qkv = tensor(DType::kBF16, {130, 256}, random(130 * 256)), o = filled(DType::kBF16, {130, 128}, NAN);
  Tensor lse = filled(DType::kF32, {1, 2, 130}, NAN);
  ok(ops().attention(stream(), d, qkv.in(), In(), o.out(), lse.out()));
  const auto want = reference::attention(shape(d), qkv.values());
  expect_close(o.values(), want.o, rounded(DType::kBF16, 3), "o");
  expect_close(lse.values(), want.lse, {1e-5, 1e-5}, "lse");
}

TEST_F(CudaAttention, LargeScores) {
  const AttentionDims d{1, 130, 1, 1, 16};
  Tensor qkv = tensor(DType::kF32, {130, 48}, random(130 * 48, 30.0));
  Tensor o = filled(DType::kF32, {130, 16}, 0), lse = filled(DType::kF32, {1, 1, 130}, 0);
  ok(ops().attention(stream(), d, qkv.in(), In(), o.out(), lse.out()));
  const auto want = reference::attention(shape(d), qkv.values());
  // Scores near 10^4 have f32 errors near 10^-3, and so have their exponents.
  expect_close(o.values(), want.o, {0.2, 5e-3}, "o");
  expect_close(lse.values(), want.lse, {1e-3, 1e-6}, "lse");
}

// f32 is deterministic in both directions; cuDNN's forward is too.
TEST_P(CudaAttention, CanBeCapturedAndRepeats) {
  const AttentionDims d{2, 256, 8, 2, 64};
  const int64_t tokens = 512, width = 768, out = 512;
  Tensor qkv = tensor(GetParam(), {tokens, width}, random(tokens * width));
  Tensor d_o = tensor(GetParam(), {tokens, out}, random(tokens * out));
  Tensor o = filled(GetParam(), {tokens, out}, NAN), lse = filled(DType::kF32, {2, 8, 256}, NAN);
  Tensor dqkv = filled(GetParam(), {tokens, width}, NAN);
  const auto step = [&] {
    absl::Status status = ops().attention(stream(), d, qkv.in(), In(), o.out(), lse.out());
    if (!status.ok()) return status;
    return ops().attention_backward(stream(), d, qkv.in(), In(), o.in(), lse.in(), d_o.in(), dqkv.out());
  };
  ok(step());
  const auto eager_o = o.bytes(), eager_lse = lse.bytes(), eager_bytes = dqkv.bytes();
  const Values eager = dqkv.values();
  run_captured(step);
  EXPECT_EQ(o.bytes(), eager_o);
  EXPECT_EQ(lse.bytes(), eager_lse);
  if (GetParam() == DType::kF32) {
    EXPECT_EQ(dqkv.bytes(), eager_bytes);
  } else {
    expect_close(dqkv.values(), eager, {1e-2, 1e-2}, "dqkv");
  }
}

// In parts of the batch, the last one smaller, since all scores need more than is allowed; and in one.
TEST_F(CudaAttention, DeterministicBackward) {
  auto deterministic = cuda::LibraryOps::create(0, true);
  ASSERT_TRUE(deterministic.ok()) << deterministic.status();
  for (const AttentionDims& d : {AttentionDims{3, 8192, 4, 4, 32}, AttentionDims{2, 1024, 12, 4, 64}}) {
    SCOPED_TRACE(name(d));
    const int64_t tokens = d.batch * d.sequence, width = shape(d).width(), out = d.heads * d.head_dim;
    Tensor qkv = tensor(DType::kBF16, {tokens, width}, uniform(tokens * width));
    Tensor d_o = tensor(DType::kBF16, {tokens, out}, uniform(tokens * out));
    Tensor o = filled(DType::kBF16, {tokens, out}, NAN), lse = filled(DType::kF32, {d.batch, d.heads, d.sequence}, NAN);
    ok(ops().attention(stream(), d, qkv.in(), In(), o.out(), lse.out()));
    Tensor atomics = filled(DType::kBF16, {tokens, width}, NAN);
    ok(ops().attention_backward(stream(), d, qkv.in(), In(), o.in(), lse.in(), d_o.in(), atomics.out()));
    std::vector<uint8_t> first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      Tensor dqkv = filled(DType::kBF16, {tokens, width}, NAN);
      ok((*deterministic)->attention_backward(stream(), d, qkv.in(), In(), o.in(), lse.in(), d_o.in(), dqkv.out()));
      if (repeat == 0) {
        first = dqkv.bytes();
        expect_close(dqkv.values(), atomics.values(), {0.02, 0.02}, "dqkv");
      }
      EXPECT_EQ(dqkv.bytes(), first);
    }
    rig().release();
  }
}

TEST_F(CudaAttention, AFirstCallUnderCaptureIsRefused) {
  const AttentionDims d{1, 192, 1, 1, 64};
  Tensor qkv = tensor(DType::kBF16, {192, 192}, random(192 * 192)), o = filled(DType::kBF16, {192, 64}, 0);
  Tensor lse = filled(DType::kF32, {192}, 0);
  absl::Status status;
  run_captured([&] {
    status = ops().attention(stream(), d, qkv.in(), In(), o.out(), lse.out());
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

TEST_F(CudaAttention, Refusals) {
  Tensor o = filled(DType::kF32, {4, 12}, 0), lse = filled(DType::kF32, {8}, 0);
  expect_refused(ops().attention(stream(), {1, 4, 2, 1, 6}, o.in(), In(), o.out(), lse.out()),
                 {"attention: qkv", "[4, 12]", "[4, 24]"});
  Tensor wide = filled(DType::kF32, {1, 3 * 520}, 0), wide_o = filled(DType::kF32, {1, 520}, 0);
  expect_refused(
      ops().attention(stream(), {1, 1, 1, 1, 520}, wide.in(), In(), wide_o.out(), filled(DType::kF32, {1}, 0).out()),
      {"attention: dims.head_dim", "got 520", "512"});
}

}  // namespace
}  // namespace telar::backend::testing
