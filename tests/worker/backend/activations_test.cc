#include "tests/reference/activations.h"

#include <cmath>

#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

class ActivationsTest : public KernelTest {
 protected:
  // Normals and the far ends, where exponentials over- and underflow.
  Values inputs(int64_t n) {
    Values x = random(n, 2.0);
    const double ends[] = {0.0, -0.0, 100, -100, 20, -20, 1e-6, -1e-6, 1e4, -1e4};
    for (size_t i = 0; i < std::size(ends) && i < x.size() / 2; ++i) x[2 * i] = ends[i];
    return x;
  }
};
TELAR_FLOAT_TYPES(ActivationsTest);

TEST_P(ActivationsTest, GeluAndItsDerivative) {
  for (int64_t n : {int64_t{1}, int64_t{3}, int64_t{17}, int64_t{129}, int64_t{33001}}) {
    Tensor x = tensor(GetParam(), {n}, inputs(n)), dy = tensor(GetParam(), {n}, random(n));
    Tensor y = filled(GetParam(), {n}, 0), dx = filled(GetParam(), {n}, 0);
    ok(kernels().gelu(stream(), x.in(), y.out(), Out()));
    ok(kernels().gelu_backward(stream(), dy.in(), x.in(), dx.out(), InOut(), Out()));
    Values want = x.values(), want_dx = x.values();
    const Values d = dy.values();
    for (double& value : want) value = reference::gelu(value);
    for (size_t i = 0; i < want_dx.size(); ++i) want_dx[i] = d[i] * reference::gelu_derivative(want_dx[i]);
    expect_close(y.values(), want, rounded(GetParam()), "y");
    expect_close(dx.values(), want_dx, rounded(GetParam()), "dx");
  }
}

// dx has to be the same with and without the sums.
TEST_P(ActivationsTest, GeluBackwardWithTheGradientOfTheBias) {
  std::vector<std::pair<int64_t, int64_t>> sizes = {{1, 1}, {2, 3}, {33, 17}, {700, 65}, {5, 3072}, {2100, 264}};
  for (int i = 0; i < 4; ++i) sizes.emplace_back(pick(1, 200), pick(1, 700));
  for (const auto& [rows, width] : sizes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << width);
    Tensor x = tensor(GetParam(), {rows, width}, inputs(rows * width));
    Tensor dy = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor alone = filled(GetParam(), {rows, width}, NAN), dx = filled(GetParam(), {rows, width}, NAN);
    Tensor dbias = tensor(DType::kF32, {width}, random(width));
    Values want = x.values(), want_dbias = dbias.values();
    const Values d = dy.values();
    for (size_t i = 0; i < want.size(); ++i) want[i] = d[i] * reference::gelu_derivative(want[i]);
    ok(kernels().gelu_backward(stream(), dy.in(), x.in(), alone.out(), InOut(), Out()));
    ok(kernels().gelu_backward(stream(), dy.in(), x.in(), dx.out(), dbias.inout(), Out()));
    EXPECT_EQ(dx.bytes(), alone.bytes());
    expect_close(dx.values(), want, rounded(GetParam()), "dx");
    const Values stored = dx.values();
    for (size_t i = 0; i < stored.size(); ++i) want_dbias[i % static_cast<size_t>(width)] += stored[i];
    expect_close(dbias.values(), want_dbias, {3e-6 * std::sqrt(static_cast<double>(rows)), 1e-5}, "dbias");
  }
}

TEST_P(ActivationsTest, SwigluAndItsDerivative) {
  for (int64_t width : kOddSizes) {
    const int64_t rows = pick(1, 70);
    Tensor x = tensor(GetParam(), {rows, 2 * width}, inputs(2 * rows * width));
    Tensor dy = tensor(GetParam(), {rows, width}, random(rows * width));
    Tensor y = filled(GetParam(), {rows, width}, 0), dx = filled(GetParam(), {rows, 2 * width}, 0);
    ok(kernels().swiglu(stream(), x.in(), y.out(), Out()));
    ok(kernels().swiglu_backward(stream(), dy.in(), x.in(), dx.out(), Out()));
    expect_close(y.values(), reference::swiglu(x.values(), width), rounded(GetParam()), "y");
    expect_close(dx.values(), reference::swiglu_backward(dy.values(), x.values(), width), rounded(GetParam()), "dx");
  }
}

TEST_F(ActivationsTest, Refusals) {
  Tensor x = filled(DType::kF32, {4, 6}, 0), y = filled(DType::kF32, {4, 3}, 0), half = filled(DType::kBF16, {4, 3}, 0);
  Tensor odd = filled(DType::kF32, {4, 5}, 0);
  expect_refused(kernels().gelu(stream(), x.in(), y.out(), Out()), {"gelu: y", "[4, 3]", "[24]"});
  expect_refused(kernels().gelu_backward(stream(), half.in(), y.in(), y.out(), InOut(), Out()),
                 {"gelu_backward: dy", "bf16"});
  expect_refused(kernels().gelu_backward(stream(), y.in(), y.in(), y.out(), x.inout(), Out()),
                 {"gelu_backward: dbias", "[4, 6]", "[3]"});
  expect_refused(kernels().swiglu(stream(), odd.in(), y.out(), Out()), {"swiglu: gate_up", "got 5", "even"});
  expect_refused(kernels().swiglu(stream(), x.in(), half.out(), Out()), {"swiglu: y", "bf16", "as gate_up"});
  expect_refused(kernels().swiglu_backward(stream(), x.in(), x.in(), x.out(), Out()),
                 {"swiglu_backward: dy", "[4, 3]"});
}

}  // namespace
}  // namespace telar::backend::testing
