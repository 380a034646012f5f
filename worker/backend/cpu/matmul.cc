#include "worker/backend/cpu/matmul.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <exception>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "worker/backend/cpu/parallel.h"
#include "worker/backend/cpu/simd.h"

namespace telar::backend::cpu {

namespace {

constexpr int64_t kTileRows = 256;
constexpr int64_t kTileColumns = 256;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::stream& thread_stream() {
  thread_local dnnl::stream stream(cpu_engine());
  return stream;
}

dnnl::memory::data_type vendor_type(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// Without these instructions oneDNN emulates bf16, slower than f32, or has no such product at all.
bool multiplies_bf16() {
  const int wanted = static_cast<int>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

// oneDNN plans a primitive for the threads that it sees when it is made, and some kinds look again when they run.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

template <typename T>
TELAR_SIMD void widen_piece(const T* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = load(from[i]);
}

template <typename T>
TELAR_SIMD void round_piece(const float* from, T* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store(from[i], to[i]);
}

// `elements` at `data` as f32: themselves, or a copy in scratch.
const std::byte* as_f32(const std::byte* data, DType dtype, int64_t elements, Scratch use) {
  if (data == nullptr || dtype == DType::kF32) return data;
  float* to = scratch(use, elements);
  with_type(dtype, [&](auto type) {
    const auto* from = reinterpret_cast<const decltype(type)*>(data);
    parallel_pieces(elements, kElementPiece,
                    [=](int64_t first, int64_t last) { widen_piece(from + first, to + first, last - first); });
  });
  return reinterpret_cast<const std::byte*>(to);
}

// Whether oneDNN takes the product as it is. It has no f16 on CPUs.
bool is_native(const Product& p) {
  if (p.a.dtype != p.b.dtype) return false;
  if (p.a.dtype == DType::kF32) return p.c_dtype == DType::kF32 && p.bias == nullptr;
  return p.a.dtype == DType::kBF16 && p.c_dtype != DType::kF16 && multiplies_bf16() &&
         (p.bias == nullptr || p.bias_dtype != DType::kF16);
}

absl::Status vendor_error(const std::exception& error, int64_t m, int64_t n, int64_t k) {
  return absl::InternalError(absl::StrCat("oneDNN matmul ", m, " x ", n, " x ", k, ": ", error.what()));
}

}  // namespace

struct Matmul::Primitive {
  dnnl::memory::desc a, b, bias, c;
  dnnl::matmul::primitive_desc plan;
  dnnl::matmul matmul;

  void run(const std::byte* a_data, const std::byte* b_data, const std::byte* bias_data, std::byte* c_data) const {
    const auto memory = [](const dnnl::memory::desc& desc, const std::byte* data) {
      return dnnl::memory(desc, cpu_engine(), const_cast<std::byte*>(data));
    };
    const dnnl::memory::desc work = plan.scratchpad_desc();
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, memory(a, a_data)},
        {DNNL_ARG_WEIGHTS, memory(b, b_data)},
        {DNNL_ARG_DST, memory(c, c_data)},
        {DNNL_ARG_SCRATCHPAD, memory(work, scratch_bytes(Scratch::kOneDnn, work.get_size()))}};
    if (bias_data != nullptr) arguments.emplace(DNNL_ARG_BIAS, memory(bias, bias_data));
    const OneThread one_thread;
    matmul.execute(thread_stream(), arguments);
    thread_stream().wait();
  }
};

Matmul::Matmul() = default;
Matmul::~Matmul() = default;

absl::StatusOr<const Matmul::Primitive*> Matmul::primitive(const Key& key) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Primitive>& kept = primitives_[key];
  if (kept != nullptr) return kept.get();
  const auto [m, n, k, a_row, a_column, b_row, b_column, c_row, input, output, bias, accumulate] = key;
  const OneThread one_thread;
  try {
    auto made = std::make_unique<Primitive>();
    made->a = dnnl::memory::desc({m, k}, vendor_type(input), dnnl::memory::dims{a_row, a_column});
    made->b = dnnl::memory::desc({k, n}, vendor_type(input), dnnl::memory::dims{b_row, b_column});
    made->c = dnnl::memory::desc({m, n}, vendor_type(output), dnnl::memory::dims{c_row, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // The library's own isn't safe across threads.
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    if (bias >= 0) {
      made->bias = dnnl::memory::desc({1, n}, vendor_type(static_cast<DType>(bias)), dnnl::memory::dims{n, 1});
      made->plan = {dnnl::matmul::desc(made->a, made->b, made->bias, made->c), attributes, cpu_engine()};
    } else {
      made->plan = {dnnl::matmul::desc(made->a, made->b, made->c), attributes, cpu_engine()};
    }
    made->matmul = dnnl::matmul(made->plan);
    kept = std::move(made);
  } catch (const std::exception& error) {
    return vendor_error(error, m, n, k);
  }
  return kept.get();
}

absl::Status Matmul::run_tiles(const Product& p) {
  const int64_t tile_rows = (p.m + kTileRows - 1) / kTileRows;
  const int64_t tile_columns = (p.n + kTileColumns - 1) / kTileColumns;
  // A full tile, and those cut off at the bottom, at the right, and at both.
  std::array<const Primitive*, 4> primitives{};
  const auto rows_of = [&](int64_t row) { return std::min(kTileRows, p.m - row * kTileRows); };
  const auto columns_of = [&](int64_t column) { return std::min(kTileColumns, p.n - column * kTileColumns); };
  const auto kind = [&](int64_t row, int64_t column) {
    return (rows_of(row) < kTileRows ? 1 : 0) + (columns_of(column) < kTileColumns ? 2 : 0);
  };
  for (int64_t row : {int64_t{0}, tile_rows - 1}) {
    for (int64_t column : {int64_t{0}, tile_columns - 1}) {
      absl::StatusOr<const Primitive*> made = primitive(
          {rows_of(row), columns_of(column), p.k, p.a.row_stride, p.a.column_stride, p.b.row_stride, p.b.column_stride,
           p.n, p.a.dtype, p.c_dtype, p.bias == nullptr ? -1 : static_cast<int>(p.bias_dtype), p.accumulate});
      if (!made.ok()) return made.status();
      primitives[kind(row, column)] = *made;
    }
  }
  std::mutex mutex;
  absl::Status result;
  parallel_for(tile_rows * tile_columns, [&](int64_t tile) {
    const int64_t row = tile % tile_rows, column = tile / tile_rows;
    const int64_t top = row * kTileRows, left = column * kTileColumns;
    const size_t input = size_of(p.a.dtype);
    try {
      primitives[kind(row, column)]->run(p.a.data + top * p.a.row_stride * input,
                                         p.b.data + left * p.b.column_stride * input,
                                         p.bias == nullptr ? nullptr : p.bias + left * size_of(p.bias_dtype),
                                         p.c + (top * p.n + left) * size_of(p.c_dtype));
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      result = vendor_error(error, p.m, p.n, p.k);
    }
  });
  return result;
}

absl::Status Matmul::run(const Product& product) {
  if (is_native(product)) return run_tiles(product);
  Product wide = product;
  wide.a.data = as_f32(product.a.data, product.a.dtype, product.m * product.k, Scratch::kLeft);
  wide.b.data = as_f32(product.b.data, product.b.dtype, product.k * product.n, Scratch::kRight);
  wide.bias = as_f32(product.bias, product.bias_dtype, product.n, Scratch::kBias);
  wide.a.dtype = wide.b.dtype = wide.bias_dtype = wide.c_dtype = DType::kF32;
  if (product.c_dtype == DType::kF32) return run_tiles(wide);
  float* result = scratch(Scratch::kResult, product.m * product.n);
  wide.c = reinterpret_cast<std::byte*>(result);
  if (absl::Status status = run_tiles(wide); !status.ok()) return status;
  with_type(product.c_dtype, [&](auto type) {
    auto* rounded = reinterpret_cast<decltype(type)*>(product.c);
    parallel_pieces(product.m * product.n, kElementPiece,
                    [=](int64_t first, int64_t last) { round_piece(result + first, rounded + first, last - first); });
  });
  return absl::OkStatus();
}

}  // namespace telar::backend::cpu
