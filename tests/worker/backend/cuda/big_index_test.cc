// Tensors of more than 2^31 elements: what a kernel does with their last rows has to be what it does with those rows
// alone, to the bit. Inputs are made on the device.
#include <algorithm>

#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

constexpr DType kType = DType::kBF16;
constexpr int64_t kLast = 3;  // Rows that are compared.

class CudaBigIndexTest : public KernelTest {
 protected:
  View uninitialized(DType dtype, Shape shape) {
    View view;
    view.buffer = 0;
    view.dtype = dtype;
    view.shape = shape;
    view.data = rig().allocate(view.bytes(), size_of(dtype));
    return view;
  }
  View normal(DType dtype, Shape shape) {
    const View view = uninitialized(dtype, shape);
    ok(kernels().random_normal(stream(), {.seed = 5, .purpose = 0, .tensor = tensors_++, .first = 0}, 1.0f, Out(view)));
    return view;
  }
  static View last_rows(const View& view) {
    View last = view;
    const int64_t rows = view.rows(), cols = view.cols();
    last.shape = view.shape.rank() == 1 ? Shape{std::min(kLast, view.elements())} : Shape{kLast, cols};
    const int64_t skipped = view.shape.rank() == 1 ? view.elements() - last.elements() : (rows - kLast) * cols;
    last.data += static_cast<uint64_t>(skipped) * size_of(view.dtype);
    return last;
  }
  View copy_of_last(const View& view) {
    const View last = last_rows(view), copy = uninitialized(view.dtype, last.shape);
    ok(kernels().copy(stream(), In(last), Out(copy)));
    return copy;
  }
  void expect_same(const View& big, const View& small, const char* what) {
    const View last = last_rows(big);
    std::vector<uint8_t> got(last.bytes()), want(small.bytes());
    rig().download(last.data, reinterpret_cast<void*>(got.data()), got.size());
    rig().download(small.data, reinterpret_cast<void*>(want.data()), want.size());
    EXPECT_EQ(got, want) << what;
  }

 private:
  uint32_t tensors_ = 0;
};

TEST_F(CudaBigIndexTest, Elementwise) {
  const int64_t n = (int64_t{1} << 31) + 1003;
  const View a = normal(kType, {n}), b = normal(kType, {n}), y = uninitialized(kType, {n});
  const View small_a = copy_of_last(a), small_b = copy_of_last(b), small = uninitialized(kType, {kLast});
  ok(kernels().add(stream(), In(a), In(b), Out(y)));
  ok(kernels().add(stream(), In(small_a), In(small_b), Out(small)));
  expect_same(y, small, "add");
  ok(kernels().gelu(stream(), In(a), Out(y), Out()));
  ok(kernels().gelu(stream(), In(small_a), Out(small), Out()));
  expect_same(y, small, "gelu");
}

TEST_F(CudaBigIndexTest, Activations) {
  const int64_t width = 3072, rows = (int64_t{1} << 31) / width + 5;
  const View x = normal(kType, {rows, width}), dy = normal(kType, {rows, width});
  const View dx = uninitialized(kType, {rows, width}), small = uninitialized(kType, {kLast, width});
  const View small_x = copy_of_last(x), small_dy = copy_of_last(dy);
  Tensor dbias = filled(DType::kF32, {width}, 0);
  ok(kernels().gelu_backward(stream(), In(dy), In(x), Out(dx), dbias.inout(), Out()));
  ok(kernels().gelu_backward(stream(), In(small_dy), In(small_x), Out(small), dbias.inout(), Out()));
  expect_same(dx, small, "gelu_backward");

  View pairs = x, gradients = dx, small_pairs = small_x, half_dy = dy;
  pairs.shape = gradients.shape = {rows, width};
  const View y = uninitialized(kType, {rows, width / 2}), small_y = uninitialized(kType, {kLast, width / 2});
  ok(kernels().swiglu(stream(), In(pairs), Out(y), Out()));
  ok(kernels().swiglu(stream(), In(small_pairs), Out(small_y), Out()));
  expect_same(y, small_y, "swiglu");
  half_dy.shape = {rows, width / 2};
  ok(kernels().swiglu_backward(stream(), In(half_dy), In(pairs), Out(gradients), Out()));
  const View small_half_dy = copy_of_last(half_dy);
  ok(kernels().swiglu_backward(stream(), In(small_half_dy), In(small_pairs), Out(small), Out()));
  expect_same(gradients, small, "swiglu_backward");
}

TEST_F(CudaBigIndexTest, Norms) {
  const int64_t width = 1600, rows = (int64_t{1} << 31) / width + 5;
  const View x = normal(kType, {rows, width}), dy = normal(kType, {rows, width}), w = normal(kType, {width});
  const View y = uninitialized(kType, {rows, width}), small_y = uninitialized(kType, {kLast, width});
  const View mean = uninitialized(DType::kF32, {rows}), rstd = uninitialized(DType::kF32, {rows});
  const View small_x = copy_of_last(x), small_dy = copy_of_last(dy);
  const View small_mean = uninitialized(DType::kF32, {kLast}), small_rstd = uninitialized(DType::kF32, {kLast});
  ok(kernels().layer_norm(stream(), In(x), In(), In(w), In(), 1e-5f, Out(), Out(y), Out(mean), Out(rstd), Out()));
  ok(kernels().layer_norm(stream(), In(small_x), In(), In(w), In(), 1e-5f, Out(), Out(small_y), Out(small_mean),
                          Out(small_rstd), Out()));
  expect_same(y, small_y, "layer_norm");
  expect_same(mean, small_mean, "mean");
  Tensor dw = filled(DType::kF32, {width}, 0), dbias = filled(DType::kF32, {width}, 0);
  ok(kernels().layer_norm_backward(stream(), In(dy), In(x), In(w), In(mean), In(rstd), InOut(y), dw.inout(),
                                   dbias.inout()));
  ok(kernels().layer_norm_backward(stream(), In(small_dy), In(small_x), In(w), In(small_mean), In(small_rstd),
                                   InOut(small_y), dw.inout(), dbias.inout()));
  expect_same(y, small_y, "layer_norm_backward");
}

TEST_F(CudaBigIndexTest, CrossEntropy) {
  const int64_t vocab = 50257, pitch = 50304, rows = (int64_t{1} << 31) / pitch + 5;
  const View logits = normal(kType, {rows, pitch}), small = copy_of_last(logits);
  const Tensor targets = ids(integers(rows, 0, static_cast<int32_t>(vocab - 1)));
  const View small_targets = copy_of_last(targets.in());
  Tensor count = filled(DType::kF32, {1}, 7), loss = filled(DType::kF32, {1}, 0);
  ok(kernels().cross_entropy(stream(), targets.in(), count.in(), In(), vocab, InOut(logits), loss.inout()));
  ok(kernels().cross_entropy(stream(), In(small_targets), count.in(), In(), vocab, InOut(small), loss.inout()));
  expect_same(logits, small, "cross_entropy");
}

TEST_F(CudaBigIndexTest, CrossEntropyOfSlices) {
  const int64_t vocab = 50257, pitch = 25152, rows = (int64_t{1} << 31) / pitch + 5;
  const VocabSlice slice{0, 25129, vocab};
  const View logits = normal(kType, {rows, pitch}), small = copy_of_last(logits);
  const Tensor targets = ids(integers(rows, 0, static_cast<int32_t>(vocab - 1)));
  const View small_targets = copy_of_last(targets.in());
  const View parts = uninitialized(DType::kF32, {3, rows}), small_parts = uninitialized(DType::kF32, {3, kLast});
  Tensor count = filled(DType::kF32, {1}, 7), loss = filled(DType::kF32, {1}, 0);
  ok(kernels().softmax_parts(stream(), targets.in(), slice, In(logits), Out(parts)));
  ok(kernels().softmax_parts(stream(), In(small_targets), slice, In(small), Out(small_parts)));
  ok(kernels().cross_entropy_parts(stream(), targets.in(), count.in(), In(), slice, In(parts), InOut(logits),
                                   loss.inout()));
  ok(kernels().cross_entropy_parts(stream(), In(small_targets), count.in(), In(), slice, In(small_parts), InOut(small),
                                   loss.inout()));
  expect_same(logits, small, "cross_entropy_parts");
}

TEST_F(CudaBigIndexTest, RopeAndEmbedding) {
  const AttentionDims small_dims{1, kLast, 12, 12, 64};
  const int64_t width = 3 * 768, rows = ((int64_t{1} << 31) / width / kLast + 2) * kLast;
  AttentionDims dims = small_dims;
  dims.batch = rows / kLast;
  const View qkv = normal(kType, {rows, width}), table = normal(DType::kF32, {kLast, 64}), small = copy_of_last(qkv);
  ok(kernels().rope(stream(), dims, In(table), In(), InOut(qkv)));
  ok(kernels().rope(stream(), small_dims, In(table), In(), InOut(small)));
  expect_same(qkv, small, "rope");

  const Tensor id = ids(integers(rows, 0, 99));
  const View words = normal(kType, {100, width}), small_ids = copy_of_last(id.in());
  ok(kernels().embedding(stream(), id.in(), {0, 100, 100}, In(words), In(), In(), kLast, Out(qkv)));
  ok(kernels().embedding(stream(), In(small_ids), {0, 100, 100}, In(words), In(), In(), kLast, Out(small)));
  expect_same(qkv, small, "embedding");
}

TEST_F(CudaBigIndexTest, AdamW) {
  const int64_t n = (int64_t{1} << 31) + 1003;
  const View grad = normal(DType::kF32, {n}), master = normal(DType::kF32, {n}), weight = uninitialized(kType, {n});
  const View m = uninitialized(DType::kF32, {n}), v = uninitialized(DType::kF32, {n});  // Zeros.
  const View small_grad = copy_of_last(grad), small_master = copy_of_last(master), small_m = copy_of_last(m);
  const View small_v = copy_of_last(v), small_weight = uninitialized(kType, {kLast});
  Tensor scale = filled(DType::kF32, {1}, 1), step = tensor(DType::kF32, {kStepScalars}, {1e-3, 0.1, 0.05, 0});
  ok(kernels().adamw(stream(), {}, In(grad), scale.in(), step.in(), InOut(master), InOut(m), InOut(v), Out(weight)));
  ok(kernels().adamw(stream(), {}, In(small_grad), scale.in(), step.in(), InOut(small_master), InOut(small_m),
                     InOut(small_v), Out(small_weight)));
  expect_same(master, small_master, "master");
  expect_same(weight, small_weight, "weight");
}

}  // namespace
}  // namespace telar::backend::testing
