// The conformance suite of `Kernels`: every method against tests/reference on whatever backend the program is linked
// with. A backend brings make_rig() (see cpu_rig.cc); the *_test.cc files beside this know no backend.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/reference/values.h"
#include "worker/backend/device.h"
#include "worker/backend/kernels.h"

namespace telar::backend::testing {

using reference::Values;

// A device under test.
class Rig {
 public:
  virtual ~Rig() = default;
  virtual Kernels& kernels() = 0;
  virtual Stream& stream() = 0;
  // `bytes` of device memory, aligned no better than elements of `alignment` bytes need.
  virtual std::byte* allocate(size_t bytes, size_t alignment) = 0;
  virtual void upload(const void* host, std::byte* device, size_t bytes) = 0;
  virtual void download(const std::byte* device, void* host, size_t bytes) = 0;
  // Threads that kernels may use from now on; a device without such a notion ignores it.
  virtual void set_threads(int threads) = 0;
  // Whether the kernels look at ids and targets before they compute; where those are on a device they cannot.
  virtual bool refuses_values() const = 0;
  // Whether bf16 and f16 attention round the probabilities to 16 bits for its second product, as tensor cores need
  // them.
  virtual bool rounds_probabilities() const { return false; }
};
// Null when this machine has no such device: then every test is skipped.
std::unique_ptr<Rig> make_rig();
// Another stream and other memory on the device of `rig`, with the same Kernels object; not to outlive it.
std::unique_ptr<Rig> make_rig_beside(Rig& rig);

// Device memory with values. `values` are rounded to the storage type; values() gives them as the device has them.
class Tensor {
 public:
  Tensor(Rig& rig, DType dtype, Shape shape, const Values& values);
  In in() const { return In(view_); }
  Out out() const { return Out(view_); }
  InOut inout() const { return InOut(view_); }
  Values values() const;
  std::vector<uint8_t> bytes() const;

 private:
  Rig& rig_;
  View view_;
};

// Elements [first, first + n) of a whole In, Out or InOut.
template <typename Argument>
Argument range(Argument whole, int64_t first, int64_t n) {
  whole.data += static_cast<size_t>(first) * size_of(whole.dtype);
  whole.shape = {n};
  return whole;
}

struct Tolerance {
  double absolute;
  double relative;
};
// |got - want| <= absolute + relative |want|, everywhere; NaN never is.
void expect_close(const Values& got, const Values& want, Tolerance tolerance, const std::string& what);
// What rounding to a type of 16 bits changes at most, relative: half a unit. 0 for f32.
double half_unit(DType dtype);
// Of a result that was computed in f32 and rounded once to `dtype`, where values and their sums are around `scale`.
Tolerance rounded(DType dtype, double scale = 1.0);

// The status of a refused call, INVALID_ARGUMENT with each part in its message.
void expect_refused(const absl::Status& status, const std::vector<std::string>& parts);

class KernelTest : public ::testing::TestWithParam<DType> {
 protected:
  KernelTest() : rig_(make_rig()) {}
  void SetUp() override {
    if (rig_ == nullptr) GTEST_SKIP() << "no device";
  }
  Kernels& kernels() { return rig_->kernels(); }
  Stream& stream() { return rig_->stream(); }
  Rig& rig() { return *rig_; }
  void ok(const absl::Status& status) {
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(stream().synchronize().ok());
  }

  Values random(int64_t n, double scale = 1.0);                         // Normal.
  std::vector<int32_t> integers(int64_t n, int32_t low, int32_t high);  // Both included.
  int64_t pick(int64_t low, int64_t high) {
    return integers(1, static_cast<int32_t>(low), static_cast<int32_t>(high))[0];
  }
  Tensor tensor(DType dtype, Shape shape, const Values& values) { return {*rig_, dtype, shape, values}; }
  Tensor filled(DType dtype, Shape shape, double value) {
    return tensor(dtype, shape, Values(shape.elements(), value));
  }
  Tensor ids(const std::vector<int32_t>& values) {
    return tensor(DType::kI32, {static_cast<int64_t>(values.size())}, Values(values.begin(), values.end()));
  }

  std::mt19937_64 engine_{20240611};

 private:
  std::unique_ptr<Rig> rig_;
};

// Extents that no vector width or block size divides, and some drawn at random by tests.
inline constexpr int64_t kOddSizes[] = {1, 3, 17, 65, 129};

inline std::string dtype_name(const ::testing::TestParamInfo<DType>& info) { return std::string(name_of(info.param)); }
#define TELAR_FLOAT_TYPES(Suite) \
  INSTANTIATE_TEST_SUITE_P(Types, Suite, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16), dtype_name)

}  // namespace telar::backend::testing
