// The same inputs give the same bits: for any number of threads, at any address, and beside other callers.
#include <functional>
#include <thread>

#include "tests/worker/backend/kernel_test.h"

namespace telar::backend::testing {
namespace {

// Each op that sums over more than one row or element, at sizes of many pieces with ragged ends. Returns the bytes of
// every result. Inputs depend on the dtype only.
class Workload {
 public:
  Workload(Rig& rig, DType dtype) : rig_(rig), dtype_(dtype) {}

  std::vector<std::vector<uint8_t>> run() {
    engine_.seed(99);
    results_.clear();
    linear();
    norms();
    attention();
    losses();
    return std::move(results_);
  }

 private:
  static constexpr int64_t kTokens = 390, kWidth = 77, kOut = 301;

  Tensor random(DType dtype, Shape shape) {
    std::normal_distribution<double> normal;
    Values values(shape.elements());
    for (double& value : values) value = normal(engine_);
    return {rig_, dtype, shape, values};
  }
  Tensor random(Shape shape) { return random(dtype_, shape); }
  Tensor grad(Shape shape) { return random(DType::kF32, shape); }
  Tensor ids(int32_t below) {
    std::uniform_int_distribution<int32_t> uniform(0, below - 1);
    Values values(kTokens);
    for (double& value : values) value = uniform(engine_);
    return {rig_, DType::kI32, {kTokens}, values};
  }
  void keep(const absl::Status& status, std::initializer_list<const Tensor*> results) {
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(rig_.stream().synchronize().ok());
    for (const Tensor* result : results) results_.push_back(result->bytes());
  }

  void linear() {
    Tensor x = random({kTokens, kWidth}), w = random({kOut, kWidth}), bias = random({kOut}),
           y = random({kTokens, kOut});
    Tensor dx = random({kTokens, kWidth}), dw = grad({kOut, kWidth}), dbias = grad({kOut});
    Kernels& k = rig_.kernels();
    keep(k.linear(rig_.stream(), x.in(), w.in(), bias.in(), y.out()), {&y});
    keep(k.linear_dgrad(rig_.stream(), y.in(), w.in(), dx.out()), {&dx});
    keep(k.linear_wgrad(rig_.stream(), y.in(), x.in(), true, dw.inout(), dbias.inout()), {&dw, &dbias});
    // Long sums for few results: where a library is tempted to split the sum between threads.
    Tensor long_dy = random({4096, 40}), long_x = random({4096, 24}), small = grad({40, 24});
    keep(k.linear_wgrad(rig_.stream(), long_dy.in(), long_x.in(), true, small.inout(), InOut()), {&small});
  }
  void norms() {
    Tensor x = random({kTokens, kWidth}), w = random({kWidth}), y = random({kTokens, kWidth}),
           dy = random({kTokens, kWidth});
    Tensor mean = grad({kTokens}), rstd = grad({kTokens}), dw = grad({kWidth}), dbias = grad({kWidth});
    Kernels& k = rig_.kernels();
    keep(k.layer_norm(rig_.stream(), x.in(), In(), w.in(), In(), 1e-5f, Out(), y.out(), mean.out(), rstd.out(), Out()),
         {&y, &mean, &rstd});
    keep(k.layer_norm_backward(rig_.stream(), dy.in(), x.in(), w.in(), mean.in(), rstd.in(), y.inout(), dw.inout(),
                               dbias.inout()),
         {&y, &dw, &dbias});
    keep(k.rms_norm(rig_.stream(), x.in(), In(), w.in(), 1e-5f, Out(), y.out(), rstd.out(), Out()), {&y, &rstd});
    keep(k.rms_norm_backward(rig_.stream(), dy.in(), x.in(), w.in(), rstd.in(), y.inout(), dw.inout()), {&y, &dw});
    keep(k.gelu_backward(rig_.stream(), dy.in(), x.in(), y.out(), dbias.inout(), Out()), {&y, &dbias});
  }
  void attention() {
    const AttentionDims dims{2, kTokens / 2, 4, 2, 22};
    Tensor qkv = random({kTokens, 8 * 22}), o = random({kTokens, 4 * 22}), d_o = random({kTokens, 4 * 22});
    Tensor lse = grad({2, 4, kTokens / 2}), dqkv = random({kTokens, 8 * 22});
    Kernels& k = rig_.kernels();
    keep(k.attention(rig_.stream(), dims, qkv.in(), In(), o.out(), lse.out()), {&o, &lse});
    keep(k.attention_backward(rig_.stream(), dims, qkv.in(), In(), o.in(), lse.in(), d_o.in(), dqkv.out()), {&dqkv});
  }
  void losses() {
    Tensor id = ids(kOut), dy = random({kTokens, 200}), dtable = grad({kOut, 200}), dpositions = grad({30, 200});
    Tensor logits = random({kTokens, kOut + 3}), count(rig_, DType::kF32, {1}, {kTokens}), loss = grad({1});
    Tensor parts = grad({2, 3, kTokens}), slice_logits = random({kTokens, kOut}), part_loss = grad({1});
    Tensor big = random({100003}), sum = grad({1}), noise = random({10007});
    Kernels& k = rig_.kernels();
    keep(k.embedding_backward(rig_.stream(), id.in(), {0, kOut, kOut}, dy.in(), In(), 30, dtable.inout(),
                              dpositions.inout()),
         {&dtable, &dpositions});
    keep(k.cross_entropy(rig_.stream(), id.in(), count.in(), In(), kOut, logits.inout(), loss.inout()),
         {&logits, &loss});
    const VocabSlice slice{101, 150, kOut};
    keep(k.embedding_backward(rig_.stream(), id.in(), slice, dy.in(), In(), 30, dtable.inout(), dpositions.inout()),
         {&dtable, &dpositions});
    for (int64_t rank : {0, 1}) {  // The same slice twice: enough for an order of sums.
      const Out part = range(parts.out(), rank * 3 * kTokens, 3 * kTokens);
      keep(k.softmax_parts(rig_.stream(), id.in(), slice, slice_logits.in(), part), {&parts});
    }
    keep(k.cross_entropy_loss_parts(rig_.stream(), id.in(), count.in(), parts.in(), part_loss.inout()), {&part_loss});
    keep(k.cross_entropy_parts(rig_.stream(), id.in(), count.in(), In(), slice, parts.in(), slice_logits.inout(),
                               part_loss.inout()),
         {&slice_logits, &part_loss});
    keep(k.sum_squares(rig_.stream(), big.in(), sum.inout()), {&sum});
    keep(k.random_normal(rig_.stream(), {.seed = 4, .purpose = 0, .tensor = 1, .first = 3}, 1, noise.out()), {&noise});
  }

  Rig& rig_;
  DType dtype_;
  std::mt19937_64 engine_;
  std::vector<std::vector<uint8_t>> results_;
};

class DeterminismTest : public KernelTest {};
TELAR_FLOAT_TYPES(DeterminismTest);

TEST_P(DeterminismTest, ForAnyNumberOfThreads) {
  Workload workload(rig(), GetParam());
  rig().set_threads(1);
  const auto want = workload.run();
  for (int threads : {2, 3, 4, 7}) {
    rig().set_threads(threads);
    EXPECT_EQ(workload.run(), want) << threads << " threads";  // At other addresses, too.
  }
}

TEST_P(DeterminismTest, BesideOtherCallers) {
  const std::unique_ptr<Rig> shared = make_rig();
  const auto want = Workload(*shared, GetParam()).run();
  std::vector<std::unique_ptr<Rig>> rigs;
  std::vector<std::vector<std::vector<uint8_t>>> got(3);
  std::vector<std::thread> callers;
  for (auto& result : got) {
    rigs.push_back(make_rig_beside(*shared));
    callers.emplace_back([&result, rig = rigs.back().get(), dtype = GetParam()] {
      rig->set_threads(2);
      result = Workload(*rig, dtype).run();
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const auto& result : got) EXPECT_EQ(result, want);
}

}  // namespace
}  // namespace telar::backend::testing
