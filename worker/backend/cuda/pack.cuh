// Elements in registers, moved 16 bytes at a time where addresses allow it.
//
// Which thread handles which element never depends on alignment, only the width of its loads and stores does; so sums
// have the same order, and the same bits, at any address.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "worker/backend/view.h"

namespace telar::backend::cuda {

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float to_float(__half value) { return __half2float(value); }

// Rounds to nearest even. A NaN stays one, of whatever bits.
template <typename T>
__device__ T from_float(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);  // Infinity from 65520 on.
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return __float2int_rn(value);
  } else {
    static_assert(std::is_same_v<T, float>);
    return value;
  }
}

template <typename T, int kN>
struct Pack {
  T values[kN];
  __device__ float get(int i) const { return to_float(values[i]); }
  __device__ void set(int i, float value) { values[i] = from_float<T>(value); }
};

// The values as from_float() rounds them, two at a time where the processor can.
template <typename T, int kN>
__device__ Pack<T, kN> rounded(const float (&values)[kN]) {
  Pack<T, kN> pack;
  if constexpr (std::is_same_v<T, __nv_bfloat16> && kN % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kN; i += 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], values[i + 1]);
      memcpy(&pack.values[i], &pair, sizeof(pair));
    }
  } else if constexpr (std::is_same_v<T, __half> && kN % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kN; i += 2) {
      const __half2 pair = __floats2half2_rn(values[i], values[i + 1]);
      memcpy(&pack.values[i], &pair, sizeof(pair));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) pack.set(i, values[i]);
  }
  return pack;
}

template <typename T>
inline constexpr int kPackSize = 16 / sizeof(T);
// The words that a pack of any type is moved in.
template <typename T, int kN>
using PackWord = std::conditional_t<kN * sizeof(T) % 16 == 0, uint4, uint2>;

// Elements [at, at + kN) of `from`, zeros from `end` on. kVector: end is a multiple of kN, `from` fits fits_packs<kN>.
template <bool kVector, int kN, typename T>
__device__ Pack<T, kN> load_pack(const T* from, int64_t at, int64_t end) {
  Pack<T, kN> pack;
  if constexpr (kVector) {
    using Word = PackWord<T, kN>;
    constexpr int kWords = kN * sizeof(T) / sizeof(Word);
    static_assert(kWords * sizeof(Word) == sizeof(pack));
    Word words[kWords] = {};
    if (at < end) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const Word*>(from + at)[i];
    }
    memcpy(&pack, words, sizeof(pack));
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) pack.values[i] = at + i < end ? from[at + i] : T(0.0f);
  }
  return pack;
}

// The reverse; elements from `end` on are left alone.
template <bool kVector, int kN, typename T>
__device__ void store_pack(T* to, int64_t at, int64_t end, const Pack<T, kN>& pack) {
  if constexpr (kVector) {
    using Word = PackWord<T, kN>;
    constexpr int kWords = kN * sizeof(T) / sizeof(Word);
    Word words[kWords];
    memcpy(words, &pack, sizeof(pack));
    if (at < end) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(to + at)[i] = words[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if (at + i < end) to[at + i] = pack.values[i];
    }
  }
}

// Whether packs of kN elements from `pointer` on are aligned to their words. Absent (null) is.
template <int kN, typename T>
bool fits_packs(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(PackWord<T, kN>) == 0;
}

// Calls visit(T{}) with the device's type of a float tensor. `dtype` was checked: f32, bf16 or f16.
template <typename Visit>
auto with_type(DType dtype, const Visit& visit) {
  if (dtype == DType::kBF16) return visit(__nv_bfloat16());
  return dtype == DType::kF16 ? visit(__half()) : visit(float());
}
// The same for two tensors of one call, where bf16 and f16 do not meet: visit(A{}, B{}).
template <typename Visit>
auto with_types(DType a, DType b, const Visit& visit) {
  const auto with_half = [&](auto half) {
    if (a == DType::kF32) return visit(float(), half);
    return b == DType::kF32 ? visit(half, float()) : visit(half, half);
  };
  if (a == DType::kF32 && b == DType::kF32) return visit(float(), float());
  return a == DType::kF16 || b == DType::kF16 ? with_half(__half()) : with_half(__nv_bfloat16());
}
// Calls visit(std::bool_constant) for a condition that a kernel is compiled for.
template <typename Visit>
auto with_bool(bool condition, const Visit& visit) {
  return condition ? visit(std::true_type()) : visit(std::false_type());
}

// Where an argument starts, as with_type's T. Null when absent.
template <typename T>
const T* source(const In& view) {
  return reinterpret_cast<const T*>(view.data);
}
template <typename T>
T* target(const View& view) {
  return reinterpret_cast<T*>(view.data);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace telar::backend::cuda
