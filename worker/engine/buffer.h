// Memory as a program sees it: buffers with a size and a life, tensors that name parts of them. No addresses.
#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <string_view>

#include "worker/backend/view.h"

namespace telar::engine {

using backend::BufferId;
using backend::DType;
using backend::In;
using backend::InOut;
using backend::Out;
using backend::Shape;

// What the bytes are for. The memory plan, the metrics and the forecast count by these.
enum class MemoryClass : uint8_t {
  kWeights,
  kGrads,
  kOptimizer,
  kActivations,
  kCommunication,
  kWorkspace,
  kIo,    // Batches, scalars, results.
  kHost,  // Pinned memory of the host, which only copy lanes may touch: Program::record_copy().
};
inline constexpr int kMemoryClasses = 8;
std::string_view name_of(MemoryClass memory_class);

enum class Lifetime : uint8_t {
  kPersistent,  // Keeps its contents from run to run.
  kTransient,   // Means something only between its first write and its last use in one run; shares bytes with others.
  kExternal,    // Memory of somebody else, bound before a run.
};

struct Buffer {
  std::string name;
  uint64_t bytes = 0;
  Lifetime lifetime = Lifetime::kTransient;
  MemoryClass memory_class = MemoryClass::kWorkspace;
};

// A contiguous row-major tensor inside a buffer: a handle, freely copied.
class Tensor {
 public:
  Tensor() = default;
  Tensor(BufferId buffer, uint64_t offset, DType dtype, Shape shape) {
    view_.buffer = buffer;
    view_.offset = offset;
    view_.dtype = dtype;
    view_.shape = shape;
  }
  // The arguments of an op. On a default-made Tensor they are the absent argument.
  In in() const { return In(view_); }
  Out out() const { return Out(view_); }
  InOut inout() const { return InOut(view_); }

  bool defined() const { return view_.buffer != backend::kNoBuffer; }
  BufferId buffer() const { return view_.buffer; }
  uint64_t offset() const { return view_.offset; }
  DType dtype() const { return view_.dtype; }
  const Shape& shape() const { return view_.shape; }
  uint64_t bytes() const { return view_.bytes(); }
  int64_t elements() const { return view_.elements(); }

  // `count` elements from element `first` on, as another shape.
  Tensor slice(int64_t first, Shape shape) const {
    assert(first >= 0 && first + shape.elements() <= elements());
    return Tensor(buffer(), offset() + static_cast<uint64_t>(first) * size_of(dtype()), dtype(), shape);
  }
  // Rows [first, first + count) of a tensor seen as a matrix.
  Tensor rows(int64_t first, int64_t count) const {
    const int64_t cols = shape().cols();
    return slice(first * cols, Shape{count, cols});
  }
  Tensor reshape(Shape shape) const {
    assert(shape.elements() == elements());
    return slice(0, shape);
  }

 private:
  backend::View view_;
};

}  // namespace telar::engine
