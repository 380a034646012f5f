#include "tests/reference/linear.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "tests/worker/backend/cuda/library_rig.h"

namespace telar::backend::testing {
namespace {

struct Sizes {
  int64_t tokens, out, in;
};

// A sum of `terms` products of numbers near 1, in f32; tensor cores drop more of the small terms.
Tolerance sums(DType operands, int64_t terms) {
  const double root = std::sqrt(static_cast<double>(terms));
  return operands != DType::kF32 ? Tolerance{1e-5 * root, 2e-5} : Tolerance{2e-6 * root, 1e-5};
}
Tolerance stored(DType operands, DType result, int64_t terms) {
  const Tolerance sum = sums(operands, terms);
  return result == DType::kF32 ? sum : Tolerance{sum.absolute, half_unit(result)};
}

// Of the long sums of whole models, whose partial sums wander far from the result before they come back.
Tolerance long_sums(DType result, int64_t terms) {
  return {1e-4 * std::sqrt(static_cast<double>(terms)), std::max(1e-4, half_unit(result))};
}

class CudaLinear : public LibraryTest {
 protected:
  std::vector<Sizes> sizes() {
    std::vector<Sizes> all = {{1, 1, 1},      {3, 17, 65},    {65, 3, 129}, {129, 65, 1},  {17, 129, 3},
                              {300, 290, 70}, {64, 128, 256}, {8, 8, 8},    {257, 72, 136}};
    for (int i = 0; i < 6; ++i) all.push_back({pick(1, 90), pick(1, 90), pick(1, 200)});
    return all;
  }
  // Each body once with well aligned tensors, once with all one element off.
  template <typename Body>
  void for_all(const Body& body) {
    for (bool aligned : {true, false}) {
      rig().set_aligned(aligned);
      for (const Sizes& s : sizes()) {
        SCOPED_TRACE(::testing::Message() << s.tokens << " x " << s.out << " x " << s.in << (aligned ? "" : " odd"));
        body(s);
        rig().release();
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaLinear, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16));

TEST_P(CudaLinear, Forward) {
  for_all([&](const Sizes& s) {
    for (bool with_bias : {false, true}) {
      for (DType result : {GetParam(), DType::kF32}) {
        Tensor x = tensor(GetParam(), {s.tokens, s.in}, random(s.tokens * s.in));
        Tensor w = tensor(GetParam(), {s.out, s.in}, random(s.out * s.in));
        Tensor bias = tensor(GetParam(), {s.out}, random(s.out)), y = filled(result, {s.tokens, s.out}, -9);
        ok(ops().linear(stream(), x.in(), w.in(), with_bias ? bias.in() : In(), y.out()));
        const Values want =
            reference::linear(x.values(), w.values(), with_bias ? bias.values() : Values(), s.tokens, s.out, s.in);
        expect_close(y.values(), want, stored(GetParam(), result, s.in), with_bias ? "y with bias" : "y");
      }
    }
  });
}

TEST_P(CudaLinear, Dgrad) {
  for_all([&](const Sizes& s) {
    Tensor dy = tensor(GetParam(), {s.tokens, s.out}, random(s.tokens * s.out));
    Tensor w = tensor(GetParam(), {s.out, s.in}, random(s.out * s.in)), dx = filled(GetParam(), {s.tokens, s.in}, -9);
    ok(ops().linear_dgrad(stream(), dy.in(), w.in(), dx.out()));
    expect_close(dx.values(), reference::linear_dgrad(dy.values(), w.values(), s.tokens, s.out, s.in),
                 stored(GetParam(), GetParam(), s.out), "dx");
  });
}

TEST_P(CudaLinear, WgradAccumulates) {
  for_all([&](const Sizes& s) {
    Tensor dy = tensor(GetParam(), {s.tokens, s.out}, random(s.tokens * s.out));
    Tensor x = tensor(GetParam(), {s.tokens, s.in}, random(s.tokens * s.in));
    Tensor dw = tensor(DType::kF32, {s.out, s.in}, random(s.out * s.in));
    Values want = dw.values(), no_bias;
    for (int repeat = 0; repeat < 2; ++repeat) {
      reference::linear_wgrad(dy.values(), x.values(), s.tokens, s.out, s.in, want, no_bias);
      ok(ops().linear_wgrad(stream(), dy.in(), x.in(), true, dw.inout()));
    }
    expect_close(dw.values(), want, sums(GetParam(), 2 * s.tokens), "dweight");
  });
}

TEST_P(CudaLinear, WgradOverwritesWhateverWasThere) {
  for_all([&](const Sizes& s) {
    Tensor dy = tensor(GetParam(), {s.tokens, s.out}, random(s.tokens * s.out));
    Tensor x = tensor(GetParam(), {s.tokens, s.in}, random(s.tokens * s.in));
    Tensor dw = filled(DType::kF32, {s.out, s.in}, std::nan(""));
    Values want(s.out * s.in, 0.0), no_bias;
    reference::linear_wgrad(dy.values(), x.values(), s.tokens, s.out, s.in, want, no_bias);
    ok(ops().linear_wgrad(stream(), dy.in(), x.in(), false, dw.inout()));
    expect_close(dw.values(), want, sums(GetParam(), s.tokens), "dweight");
  });
}

TEST_P(CudaLinear, MixedTypes) {
  const DType type = GetParam();
  const int64_t tokens = 33, out = 70, in = 20;
  Tensor dy = tensor(DType::kF32, {tokens, out}, random(tokens * out));
  Tensor w = tensor(type, {out, in}, random(out * in));
  Tensor x = tensor(type, {tokens, in}, random(tokens * in));
  Tensor bias = tensor(DType::kF32, {out}, random(out));
  Tensor dx = filled(type, {tokens, in}, 0), dw = filled(DType::kF32, {out, in}, 0);
  Tensor y = filled(type, {tokens, out}, 0);
  ok(ops().linear_dgrad(stream(), dy.in(), w.in(), dx.out()));
  ok(ops().linear_wgrad(stream(), dy.in(), x.in(), true, dw.inout()));
  ok(ops().linear(stream(), x.in(), w.in(), bias.in(), y.out()));
  Values want(out * in, 0.0), no_bias;
  reference::linear_wgrad(dy.values(), x.values(), tokens, out, in, want, no_bias);
  expect_close(dx.values(), reference::linear_dgrad(dy.values(), w.values(), tokens, out, in),
               stored(DType::kF32, type, out), "dx");
  expect_close(dw.values(), want, sums(DType::kF32, tokens), "dweight");
  expect_close(y.values(), reference::linear(x.values(), w.values(), bias.values(), tokens, out, in),
               stored(DType::kF32, type, in), "y");
}

// Shapes of GPT-2 124M and Llama 3 8B, large enough to be tuned. All results are computed, some of them checked.
class CudaLinearModels : public LibraryTest {
 protected:
  static constexpr int kChecked = 500;
  // Picks elements of a [rows, cols] result and compares them with want(row, col).
  template <typename Want>
  void check_some(const Tensor& result, int64_t rows, int64_t cols, Tolerance tolerance, const char* what,
                  const Want& want) {
    const Values all = result.values();
    Values got, expected;
    for (int i = 0; i < kChecked; ++i) {
      const int64_t row = pick(0, rows - 1), col = pick(0, cols - 1);
      got.push_back(all[row * cols + col]);
      expected.push_back(want(row, col));
    }
    expect_close(got, expected, tolerance, what);
  }
};

TEST_F(CudaLinearModels, AllThreeProducts) {
  constexpr DType kType = DType::kBF16;
  for (const Sizes& s : {Sizes{1024, 2304, 768}, Sizes{1024, 768, 3072}, Sizes{512, 50304, 768}, Sizes{512, 6144, 4096},
                         Sizes{256, 4096, 14336}}) {
    SCOPED_TRACE(::testing::Message() << s.tokens << " x " << s.out << " x " << s.in);
    Tensor x = tensor(kType, {s.tokens, s.in}, uniform(s.tokens * s.in));
    Tensor w = tensor(kType, {s.out, s.in}, uniform(s.out * s.in)), bias = tensor(kType, {s.out}, uniform(s.out));
    Tensor dy = tensor(kType, {s.tokens, s.out}, uniform(s.tokens * s.out));
    Tensor y = filled(kType, {s.tokens, s.out}, -9), dx = filled(kType, {s.tokens, s.in}, -9);
    Tensor dw = filled(DType::kF32, {s.out, s.in}, 3);
    ok(ops().linear(stream(), x.in(), w.in(), bias.in(), y.out()));
    ok(ops().linear_dgrad(stream(), dy.in(), w.in(), dx.out()));
    ok(ops().linear_wgrad(stream(), dy.in(), x.in(), true, dw.inout()));
    const Values xs = x.values(), ws = w.values(), dys = dy.values(), biases = bias.values();
    check_some(y, s.tokens, s.out, long_sums(kType, s.in), "y", [&](int64_t t, int64_t n) {
      double sum = biases[n];
      for (int64_t k = 0; k < s.in; ++k) sum += xs[t * s.in + k] * ws[n * s.in + k];
      return sum;
    });
    check_some(dx, s.tokens, s.in, long_sums(kType, s.out), "dx", [&](int64_t t, int64_t k) {
      double sum = 0;
      for (int64_t n = 0; n < s.out; ++n) sum += dys[t * s.out + n] * ws[n * s.in + k];
      return sum;
    });
    check_some(dw, s.out, s.in, long_sums(DType::kF32, s.tokens), "dweight", [&](int64_t n, int64_t k) {
      double sum = 3;
      for (int64_t t = 0; t < s.tokens; ++t) sum += dys[t * s.out + n] * xs[t * s.in + k];
      return sum;
    });
    rig().release();
  }
}

// Large enough to be tuned, and so perhaps fused, and as it is when forced either way.
TEST_F(CudaLinearModels, Gelu) {
  constexpr DType kType = DType::kBF16;
  const int64_t tokens = 2048, out = 3072, in = 768;
  Tensor x = tensor(kType, {tokens, in}, uniform(tokens * in)), w = tensor(kType, {out, in}, uniform(out * in));
  Tensor bias = tensor(kType, {out}, uniform(out));
  const Values xs = x.values(), ws = w.values(), biases = bias.values();
  for (const char* how : {"measured", "fused", "apart"}) {
    SCOPED_TRACE(how);
    setenv("TELAR_GELU", how, 1);
    auto fresh = cuda::LibraryOps::create(0, false);
    unsetenv("TELAR_GELU");
    ASSERT_TRUE(fresh.ok()) << fresh.status();
    Tensor before = filled(kType, {tokens, out}, NAN), after = filled(kType, {tokens, out}, NAN);
    ok((*fresh)->linear_gelu(stream(), x.in(), w.in(), bias.in(), before.out(), after.out()));
    check_some(before, tokens, out, long_sums(kType, in), "before", [&](int64_t t, int64_t n) {
      double sum = biases[n];
      for (int64_t k = 0; k < in; ++k) sum += xs[t * in + k] * ws[n * in + k];
      return sum;
    });
    // Against what is stored, from which the one that was not rounded is half a unit away. Forced, the GELU is allowed
    // an approximate tanh.
    const Values stored = before.values(), got = after.values();
    const double tanh_error = std::string(how) == "fused" ? 1e-3 : 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double moved = std::abs(stored[i]) / 256, slope = std::abs(reference::gelu_derivative(stored[i])) + moved;
      const double want = reference::gelu(stored[i]);
      ASSERT_NEAR(got[i], want, 2e-5 + 1.02 * (std::abs(want) / 256 + moved * slope) + tanh_error * std::abs(stored[i]))
          << "after, of " << stored[i];
    }
  }
}

// Sums that TF32 would get wrong by its 2^-11.
TEST_F(CudaLinearModels, FloatIsNotRounded) {
  const int64_t tokens = 128, out = 256, in = 512;
  Tensor x = tensor(DType::kF32, {tokens, in}, uniform(tokens * in)),
         w = tensor(DType::kF32, {out, in}, uniform(out * in));
  Tensor y = filled(DType::kF32, {tokens, out}, 0);
  ok(ops().linear(stream(), x.in(), w.in(), In(), y.out()));
  expect_close(y.values(), reference::linear(x.values(), w.values(), {}, tokens, out, in), sums(DType::kF32, in), "y");
}

TEST_F(CudaLinearModels, CanBeCaptured) {
  const int64_t tokens = 256, out = 512, in = 384;
  Tensor x = tensor(DType::kBF16, {tokens, in}, uniform(tokens * in));
  Tensor w = tensor(DType::kBF16, {out, in}, uniform(out * in)), bias = tensor(DType::kBF16, {out}, uniform(out));
  Tensor eager = filled(DType::kBF16, {tokens, out}, 0), captured = filled(DType::kBF16, {tokens, out}, 0);
  ok(ops().linear(stream(), x.in(), w.in(), bias.in(), eager.out()));
  run_captured([&] { return ops().linear(stream(), x.in(), w.in(), bias.in(), captured.out()); });
  EXPECT_EQ(captured.bytes(), eager.bytes());
}

// One plan serves both threads, and each has its own bias.
TEST_F(CudaLinearModels, StreamsDoNotDisturbEachOther) {
  const int64_t tokens = 64, out = 64, in = 64;
  Tensor x = tensor(DType::kF32, {tokens, in}, Values(tokens * in, 0.0)), w = filled(DType::kF32, {out, in}, 1);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      LibraryRig own;
      Tensor bias(own, DType::kF32, {out}, Values(out, thread + 1.0));
      Tensor y(own, DType::kF32, {tokens, out}, Values(tokens * out, -9));
      for (int call = 0; call < 100; ++call) {
        ASSERT_EQ(ops().linear(own.stream(), x.in(), w.in(), bias.in(), y.out()), absl::OkStatus());
        ASSERT_EQ(own.stream().synchronize(), absl::OkStatus());
        ASSERT_EQ(y.values(), Values(tokens * out, thread + 1.0));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CudaLinearModels, ChoicesAreKeptInAFile) {
  const std::string path = ::testing::TempDir() + "/cuda_library_tuning_" + std::to_string(getpid());
  std::remove(path.c_str());
  setenv("TELAR_TUNING_FILE", path.c_str(), 1);
  const int64_t tokens = 2048, out = 2304, in = 768;
  Tensor x = tensor(DType::kBF16, {tokens, in}, uniform(tokens * in)),
         w = tensor(DType::kBF16, {out, in}, uniform(out * in));
  Tensor first = filled(DType::kBF16, {tokens, out}, 0), second = filled(DType::kBF16, {tokens, out}, 0);
  for (Tensor* y : {&first, &second}) {
    auto fresh = cuda::LibraryOps::create(0, false);
    ASSERT_TRUE(fresh.ok()) << fresh.status();
    ok((*fresh)->linear(stream(), x.in(), w.in(), In(), y->out()));
    std::ifstream file(path);
    std::string line, more;
    EXPECT_TRUE(std::getline(file, line));
    EXPECT_FALSE(std::getline(file, more)) << "tuned again: " << more;
    EXPECT_NE(line.find("TN,2304x2048x768,bf16,bf16,align256/256/256"), std::string::npos) << line;
  }
  unsetenv("TELAR_TUNING_FILE");
  EXPECT_EQ(first.bytes(), second.bytes());
}

TEST_F(CudaLinearModels, Refusals) {
  Tensor x = filled(DType::kF32, {4, 6}, 0), w = filled(DType::kF32, {5, 7}, 0), y = filled(DType::kF32, {4, 5}, 0);
  expect_refused(ops().linear(stream(), x.in(), w.in(), In(), y.out()), {"linear: weight", "[5, 7]", "[any, 6]"});
}

}  // namespace
}  // namespace telar::backend::testing
