// The CPU kernels one by one: FLOPs or bytes a second, beside what this machine can do: the first lines are the limits
// (copy bandwidth, and oneDNN's largest product).
//   bench_kernels [--benchmark_filter=...]     threads: OMP_NUM_THREADS, 1 unless set
#include <benchmark/benchmark.h>
#include <omp.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "worker/backend/cpu/cpu.h"
#include "worker/backend/device.h"

namespace telar::backend {
namespace {

constexpr int64_t kTokens = 1024, kVocab = 50304;

class CallerStream final : public Stream {
 public:
  void submit(const std::function<absl::Status(Stream&)>&) override {}
  void record(Event&) override {}
  void wait(Event&) override {}
  void copy(void*, const void*, size_t) override {}
  absl::Status synchronize() override { return absl::OkStatus(); }
};

// Memory and kernels of one benchmark.
class Bench {
 public:
  explicit Bench(DType dtype) : dtype_(dtype), kernels_(cpu::create_kernels()) {}

  View view(DType dtype, Shape shape) {
    View v{.buffer = 0, .dtype = dtype, .shape = shape};
    memory_.emplace_back(static_cast<std::byte*>(::operator new (v.bytes(), std::align_val_t{256})));
    v.data = memory_.back().get();
    std::memset(v.data, 0, v.bytes());
    if (dtype == DType::kF32 || dtype == DType::kBF16) {
      (void)kernels_->random_normal(stream_, {.tensor = static_cast<uint32_t>(memory_.size())}, 1.0f, Out(v));
    }
    return v;
  }
  View act(Shape shape) { return view(dtype_, shape); }
  View f32(Shape shape) { return view(DType::kF32, shape); }
  View ids(int64_t n, int32_t below) {
    View v = view(DType::kI32, {n});
    for (int64_t i = 0; i < n; ++i) reinterpret_cast<int32_t*>(v.data)[i] = static_cast<int32_t>(i * 7919 % below);
    return v;
  }
  Kernels& kernels() { return *kernels_; }
  Stream& stream() { return stream_; }

  // `flops` and `bytes` of one call; 0 = not reported.
  template <typename Call>
  void run(benchmark::State& state, double flops, double bytes, const Call& call) {
    for (auto _ : state) {
      if (absl::Status status = call(); !status.ok()) {
        state.SkipWithError(std::string(status.message()).c_str());
        return;
      }
    }
    const double n = static_cast<double>(state.iterations());
    if (flops > 0) state.counters["FLOP/s"] = benchmark::Counter(flops * n, benchmark::Counter::kIsRate);
    if (bytes > 0) state.counters["B/s"] = benchmark::Counter(bytes * n, benchmark::Counter::kIsRate);
  }

 private:
  struct Release {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{256}); }
  };
  DType dtype_;
  std::unique_ptr<Kernels> kernels_;
  CallerStream stream_;
  std::vector<std::unique_ptr<std::byte, Release>> memory_;
};

using Body = void (*)(benchmark::State&, DType, int64_t width);

double bytes_of(std::initializer_list<View> views) {
  double sum = 0;
  for (const View& view : views) sum += static_cast<double>(view.bytes());
  return sum;
}

void copy(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({8 * kTokens, width}), y = b.act({8 * kTokens, width});
  b.run(state, 0, bytes_of({x, y}), [&] { return b.kernels().copy(b.stream(), In(x), Out(y)); });
}

void linear(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, width}), w = b.act({4 * width, width}), y = b.act({kTokens, 4 * width});
  const double flops = 8.0 * kTokens * width * width;
  b.run(state, flops, 0, [&] { return b.kernels().linear(b.stream(), In(x), In(w), In(), Out(y)); });
}

void linear_dgrad(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View dx = b.act({kTokens, width}), w = b.act({4 * width, width}), dy = b.act({kTokens, 4 * width});
  const double flops = 8.0 * kTokens * width * width;
  b.run(state, flops, 0, [&] { return b.kernels().linear_dgrad(b.stream(), In(dy), In(w), Out(dx)); });
}

void linear_wgrad(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, width}), dw = b.f32({4 * width, width}), dy = b.act({kTokens, 4 * width});
  const View dbias = b.f32({4 * width});
  const double flops = 8.0 * kTokens * width * width;
  b.run(state, flops, 0,
        [&] { return b.kernels().linear_wgrad(b.stream(), In(dy), In(x), true, InOut(dw), InOut(dbias)); });
}

// Heads of 64; the causal half of the products is counted.
struct AttentionBench : Bench {
  AttentionBench(DType dtype, int64_t width)
      : Bench(dtype),
        dims{1, kTokens, width / 64, width / 64, 64},
        qkv(act({kTokens, 3 * width})),
        o(act({kTokens, width})),
        d_o(act({kTokens, width})),
        dqkv(act({kTokens, 3 * width})),
        lse(f32({dims.heads, kTokens})),
        flops(2.0 * width * kTokens * (kTokens + 1)) {
    (void)kernels().attention(stream(), dims, In(qkv), Out(o), Out(lse));
  }
  AttentionDims dims;
  View qkv, o, d_o, dqkv, lse;
  double flops;
};

void attention(benchmark::State& state, DType dtype, int64_t width) {
  AttentionBench b(dtype, width);
  b.run(state, b.flops, 0, [&] { return b.kernels().attention(b.stream(), b.dims, In(b.qkv), Out(b.o), Out(b.lse)); });
}

void attention_backward(benchmark::State& state, DType dtype, int64_t width) {
  AttentionBench b(dtype, width);
  b.run(state, 2.5 * b.flops, 0, [&] {
    return b.kernels().attention_backward(b.stream(), b.dims, In(b.qkv), In(b.o), In(b.lse), In(b.d_o), Out(b.dqkv));
  });
}

void rope(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const AttentionDims dims{1, kTokens, width / 64, width / 64, 64};
  const View table = b.f32({kTokens, 64}), qkv = b.act({kTokens, 3 * width});
  b.run(state, 0, 2 * bytes_of({qkv}) * 2 / 3,
        [&] { return b.kernels().rope(b.stream(), dims, In(table), InOut(qkv)); });
}

void layer_norm(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, width}), d = b.act({kTokens, width}), sum = b.act({kTokens, width});
  const View y = b.act({kTokens, width}), w = b.act({width}), mean = b.f32({kTokens}), rstd = b.f32({kTokens});
  b.run(state, 0, bytes_of({x, d, sum, y}), [&] {
    return b.kernels().layer_norm(b.stream(), In(x), In(d), In(w), In(w), 1e-5f, Out(sum), Out(y), Out(mean),
                                  Out(rstd));
  });
}

void layer_norm_backward(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, width}), dy = b.act({kTokens, width}), dx = b.act({kTokens, width}),
             w = b.act({width});
  const View mean = b.f32({kTokens}), rstd = b.f32({kTokens}), dw = b.f32({width}), dbias = b.f32({width});
  // Not let dx grow without end: gradients of nothing.
  (void)b.kernels().fill(b.stream(), 0, Out(dy));
  b.run(state, 0, bytes_of({x, dy, dx, dx}), [&] {
    return b.kernels().layer_norm_backward(b.stream(), In(dy), In(x), In(w), In(mean), In(rstd), InOut(dx), InOut(dw),
                                           InOut(dbias));
  });
}

void rms_norm(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, width}), d = b.act({kTokens, width}), sum = b.act({kTokens, width});
  const View y = b.act({kTokens, width}), w = b.act({width}), rstd = b.f32({kTokens});
  b.run(state, 0, bytes_of({x, d, sum, y}),
        [&] { return b.kernels().rms_norm(b.stream(), In(x), In(d), In(w), 1e-5f, Out(sum), Out(y), Out(rstd)); });
}

void rms_norm_backward(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, width}), dy = b.act({kTokens, width}), dx = b.act({kTokens, width}),
             w = b.act({width});
  const View rstd = b.f32({kTokens}), dw = b.f32({width});
  (void)b.kernels().fill(b.stream(), 0, Out(dy));
  b.run(state, 0, bytes_of({x, dy, dx, dx}), [&] {
    return b.kernels().rms_norm_backward(b.stream(), In(dy), In(x), In(w), In(rstd), InOut(dx), InOut(dw));
  });
}

void gelu(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, 4 * width}), y = b.act({kTokens, 4 * width});
  b.run(state, 0, bytes_of({x, y}), [&] { return b.kernels().gelu(b.stream(), In(x), Out(y)); });
}

void gelu_backward(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, 4 * width}), dy = b.act({kTokens, 4 * width}), dx = b.act({kTokens, 4 * width});
  b.run(state, 0, bytes_of({x, dy, dx}),
        [&] { return b.kernels().gelu_backward(b.stream(), In(dy), In(x), Out(dx), InOut()); });
}

void swiglu(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, 8 * width}), y = b.act({kTokens, 4 * width});
  b.run(state, 0, bytes_of({x, y}), [&] { return b.kernels().swiglu(b.stream(), In(x), Out(y)); });
}

void swiglu_backward(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, 8 * width}), dy = b.act({kTokens, 4 * width}), dx = b.act({kTokens, 8 * width});
  b.run(state, 0, bytes_of({x, dy, dx}),
        [&] { return b.kernels().swiglu_backward(b.stream(), In(dy), In(x), Out(dx)); });
}

void add(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, width}), y = b.act({kTokens, width}), z = b.act({kTokens, width});
  b.run(state, 0, bytes_of({x, y, z}), [&] { return b.kernels().add(b.stream(), In(x), In(y), Out(z)); });
}

void embedding(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View table = b.act({kVocab, width}), positions = b.act({kTokens, width}), y = b.act({kTokens, width});
  const View ids = b.ids(kTokens, kVocab);
  b.run(state, 0, 3 * bytes_of({y}),
        [&] { return b.kernels().embedding(b.stream(), In(ids), In(table), In(positions), kTokens, Out(y)); });
}

void embedding_backward(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View dtable = b.f32({kVocab, width}), dpositions = b.f32({kTokens, width}), dy = b.act({kTokens, width});
  const View ids = b.ids(kTokens, kVocab);
  (void)b.kernels().fill(b.stream(), 0, Out(dy));
  b.run(state, 0, bytes_of({dy}) + 4 * bytes_of({dpositions}), [&] {
    return b.kernels().embedding_backward(b.stream(), In(ids), In(dy), kTokens, InOut(dtable), InOut(dpositions));
  });
}

// Rows of a vocabulary, whatever `width`; read and written.
void cross_entropy(benchmark::State& state, DType dtype, int64_t) {
  Bench b(dtype);
  const View logits = b.act({kTokens, kVocab}), count = b.f32({1}), loss = b.f32({1}), targets = b.ids(kTokens, kVocab);
  (void)b.kernels().fill(b.stream(), 1024, Out(count));
  b.run(state, 0, 2 * bytes_of({logits}), [&] {
    return b.kernels().cross_entropy(b.stream(), In(targets), In(count), In(), kVocab, InOut(logits), InOut(loss));
  });
}

void sum_squares(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({4 * width, width}), sum = b.f32({1});
  b.run(state, 0, bytes_of({x}), [&] { return b.kernels().sum_squares(b.stream(), In(x), InOut(sum)); });
}

void adamw(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View grad = b.f32({4 * width, width}), master = b.f32(grad.shape), m = b.f32(grad.shape), v = b.f32(grad.shape);
  const View weight = b.act(grad.shape), scale = b.f32({1}), step = b.f32({kStepScalars});
  for (const View& one : {scale, step, v}) (void)b.kernels().fill(b.stream(), 1e-3f, Out(one));
  b.run(state, 0, bytes_of({grad, master, master, m, m, v, v, weight}), [&] {
    return b.kernels().adamw(b.stream(), AdamWParams(), In(grad), In(scale), In(step), InOut(master), InOut(m),
                             InOut(v), Out(weight));
  });
}

void random_normal(benchmark::State& state, DType dtype, int64_t width) {
  Bench b(dtype);
  const View x = b.act({kTokens, width});
  b.run(state, 0, bytes_of({x}), [&] { return b.kernels().random_normal(b.stream(), {}, 1.0f, Out(x)); });
}

void add_all() {
  const std::pair<const char*, Body> all[] = {{"copy", copy},
                                              {"linear", linear},
                                              {"linear_dgrad", linear_dgrad},
                                              {"linear_wgrad", linear_wgrad},
                                              {"attention", attention},
                                              {"attention_backward", attention_backward},
                                              {"rope", rope},
                                              {"layer_norm", layer_norm},
                                              {"layer_norm_backward", layer_norm_backward},
                                              {"rms_norm", rms_norm},
                                              {"rms_norm_backward", rms_norm_backward},
                                              {"gelu", gelu},
                                              {"gelu_backward", gelu_backward},
                                              {"swiglu", swiglu},
                                              {"swiglu_backward", swiglu_backward},
                                              {"add", add},
                                              {"embedding", embedding},
                                              {"embedding_backward", embedding_backward},
                                              {"cross_entropy", cross_entropy},
                                              {"sum_squares", sum_squares},
                                              {"adamw", adamw},
                                              {"random_normal", random_normal}};
  for (const auto& [name, body] : all) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      for (int64_t width : {256, 1024}) {
        const std::string full = std::string(name) + "/" + std::string(name_of(dtype)) + "/" + std::to_string(width);
        benchmark::RegisterBenchmark(full.c_str(), [body = body, dtype, width](benchmark::State& state) {
          body(state, dtype, width);
        })->UseRealTime();
      }
    }
  }
}

}  // namespace
}  // namespace telar::backend

int main(int argc, char** argv) {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) omp_set_num_threads(1);
  telar::backend::add_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
