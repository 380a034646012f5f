// How an op names the memory that it touches.
//
// A View is a contiguous row-major tensor at a byte range of a buffer. It is made before any memory exists, when a
// program is recorded; the engine binds `data` when it runs the op. In, Out and InOut are Views that also say how the
// memory is touched, so the access set of an op is read off its argument types and cannot be forgotten.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "worker/backend/dtype.h"

namespace telar::backend {

using BufferId = uint32_t;
inline constexpr BufferId kNoBuffer = 0xffffffffu;

// Up to four extents, outermost first. A scalar has none and one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    assert(dims.size() <= dims_.size());
    for (int64_t dim : dims) dims_[rank_++] = dim;
  }
  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[axis]; }
  int64_t elements() const {
    int64_t n = 1;
    for (int axis = 0; axis < rank_; ++axis) n *= dims_[axis];
    return n;
  }
  // Product of all but the last extent; the last extent. A tensor seen as a matrix of rows.
  int64_t rows() const { return rank_ == 0 ? 1 : elements() / cols(); }
  int64_t cols() const { return rank_ == 0 ? 1 : dims_[rank_ - 1]; }
  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int axis = 0; axis < rank_; ++axis) {
      if (dims_[axis] != other.dims_[axis]) return false;
    }
    return true;
  }
  std::string to_string() const {  // "[8, 128]"
    std::string text = "[";
    for (int axis = 0; axis < rank_; ++axis) text += (axis ? ", " : "") + std::to_string(dims_[axis]);
    return text + "]";
  }

 private:
  std::array<int64_t, 4> dims_{};
  int rank_ = 0;
};

struct View {
  BufferId buffer = kNoBuffer;
  uint64_t offset = 0;  // Bytes from the buffer's start.
  DType dtype = DType::kF32;
  Shape shape;
  std::byte* data = nullptr;  // Bound by the executor for the time of the call; device memory.

  uint64_t bytes() const { return static_cast<uint64_t>(shape.elements()) * size_of(dtype); }
  int64_t elements() const { return shape.elements(); }
  int64_t rows() const { return shape.rows(); }
  int64_t cols() const { return shape.cols(); }
  // An optional argument that is not there.
  bool absent() const { return buffer == kNoBuffer && data == nullptr; }
};

enum class AccessMode : uint8_t { kRead, kWrite, kReadWrite };

// Read only.
struct In : View {
  static constexpr AccessMode kMode = AccessMode::kRead;
  In() = default;
  explicit In(const View& view) : View(view) {}
  template <typename T>
  const T* as() const {
    assert(dtype == DTypeOf<T>::value);
    return reinterpret_cast<const T*>(data);
  }
};

// Every byte is written; what was there before is not read.
struct Out : View {
  static constexpr AccessMode kMode = AccessMode::kWrite;
  Out() = default;
  explicit Out(const View& view) : View(view) {}
  template <typename T>
  T* as() const {
    assert(dtype == DTypeOf<T>::value);
    return reinterpret_cast<T*>(data);
  }
};

// Read and written, or written in part.
struct InOut : View {
  static constexpr AccessMode kMode = AccessMode::kReadWrite;
  InOut() = default;
  explicit InOut(const View& view) : View(view) {}
  template <typename T>
  T* as() const {
    assert(dtype == DTypeOf<T>::value);
    return reinterpret_cast<T*>(data);
  }
};

}  // namespace telar::backend
