// Matrix products by oneDNN, with the same bits for any number of threads.
//
// oneDNN splits a product by the threads at hand, at times along the sum, and then results differ in the last bit. Here
// the result is cut into tiles of fixed size; each is one single-threaded oneDNN product, and threads share the tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/dtype.h"

namespace telar::backend::cpu {

// A dense matrix: row-major, or its transpose.
struct Operand {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0;  // In elements; one of the two is 1.
  int64_t column_stride = 0;
};

struct Product {
  int64_t m = 0, n = 0, k = 0;
  Operand a;                        // [m, k]
  Operand b;                        // [k, n]
  const std::byte* bias = nullptr;  // [n], added to every row; null = none.
  DType bias_dtype = DType::kF32;
  std::byte* c = nullptr;  // [m, n], dense.
  DType c_dtype = DType::kF32;
  bool accumulate = false;  // c += a b; c is f32 then.
};

class Matmul {
 public:
  Matmul();
  ~Matmul();

  // f32, bf16 and f16 in any mixture, sums in f32. bf16 x bf16 runs as it is where the processor has instructions for
  // it; everything else is widened to f32 first, in scratch. Vendor errors come back as INTERNAL.
  absl::Status run(const Product& product);

 private:
  struct Primitive;
  // m, n, k, a's strides, b's strides, c's row stride, input, output and bias dtype (-1 = none), accumulate.
  using Key =
      std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, DType, DType, int, bool>;

  absl::StatusOr<const Primitive*> primitive(const Key& key);
  absl::Status run_tiles(const Product& product);

  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Primitive>> primitives_;  // Guarded by mutex_; entries stay.
};

}  // namespace telar::backend::cpu
