#include "tests/worker/backend/kernel_test.h"

#include <algorithm>
#include <cmath>

namespace telar::backend::testing {

Tensor::Tensor(Rig& rig, DType dtype, Shape shape, const Values& values) : rig_(rig) {
  view_.buffer = 0;
  view_.dtype = dtype;
  view_.shape = shape;
  EXPECT_EQ(static_cast<int64_t>(values.size()), shape.elements());
  view_.data = rig.allocate(view_.bytes(), size_of(dtype));
  std::vector<uint8_t> host(view_.bytes());
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kBF16) {
      const Bf16 value(static_cast<float>(values[i]));
      std::memcpy(&host[2 * i], &value, 2);
    } else if (dtype == DType::kF16) {
      const F16 value(static_cast<float>(values[i]));
      std::memcpy(&host[2 * i], &value, 2);
    } else if (dtype == DType::kF8E4M3) {
      host[i] = F8E4M3(static_cast<float>(values[i])).bits;
    } else if (dtype == DType::kF8E5M2) {
      host[i] = F8E5M2(static_cast<float>(values[i])).bits;
    } else if (dtype == DType::kI32) {
      const int32_t value = static_cast<int32_t>(values[i]);
      std::memcpy(&host[4 * i], &value, 4);
    } else {
      const float value = static_cast<float>(values[i]);
      std::memcpy(&host[4 * i], &value, 4);
    }
  }
  rig.upload(host.data(), view_.data, host.size());
}

std::vector<uint8_t> Tensor::bytes() const {
  std::vector<uint8_t> host(view_.bytes());
  rig_.download(view_.data, host.data(), host.size());
  return host;
}

Values Tensor::values() const {
  const std::vector<uint8_t> host = bytes();
  Values values(view_.elements());
  for (size_t i = 0; i < values.size(); ++i) {
    if (view_.dtype == DType::kBF16) {
      Bf16 value;
      std::memcpy(&value, &host[2 * i], 2);
      values[i] = static_cast<float>(value);
    } else if (view_.dtype == DType::kF16) {
      F16 value;
      std::memcpy(&value, &host[2 * i], 2);
      values[i] = static_cast<float>(value);
    } else if (view_.dtype == DType::kF8E4M3) {
      F8E4M3 value;
      value.bits = host[i];
      values[i] = static_cast<float>(value);
    } else if (view_.dtype == DType::kF8E5M2) {
      F8E5M2 value;
      value.bits = host[i];
      values[i] = static_cast<float>(value);
    } else if (view_.dtype == DType::kI32) {
      int32_t value = 0;
      std::memcpy(&value, &host[4 * i], 4);
      values[i] = value;
    } else {
      float value = 0;
      std::memcpy(&value, &host[4 * i], 4);
      values[i] = value;
    }
  }
  return values;
}

void expect_close(const Values& got, const Values& want, Tolerance tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  size_t wrong = 0, worst = 0;
  double worst_excess = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - want[i]);
    const double allowed = tolerance.absolute + tolerance.relative * std::abs(want[i]);
    if (error <= allowed) continue;
    ++wrong;
    const double excess = std::isnan(error) ? HUGE_VAL : error / allowed;
    if (excess > worst_excess || wrong == 1) {
      worst_excess = excess;
      worst = i;
    }
  }
  EXPECT_EQ(wrong, 0u) << what << ": of " << got.size() << ", worst at " << worst << ": got " << got[worst] << ", want "
                       << want[worst] << " (" << worst_excess << " x the tolerance)";
}

double half_unit(DType dtype) {
  if (dtype == DType::kBF16) return 1.0 / 256;
  return dtype == DType::kF16 ? 1.0 / 2048 : 0;
}

Tolerance rounded(DType dtype, double scale) {
  // The absolute part is for f32 landing beside a tie; it is far above the subnormals of f16.
  return dtype == DType::kF32 ? Tolerance{3e-6 * scale, 3e-6} : Tolerance{1e-5 * scale, half_unit(dtype)};
}

void expect_refused(const absl::Status& status, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  for (const std::string& part : parts) {
    EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << "no '" << part << "' in: " << status;
  }
}

Values KernelTest::random(int64_t n, double scale) {
  std::normal_distribution<double> normal(0, scale);
  Values values(n);
  for (double& value : values) value = normal(engine_);
  return values;
}

std::vector<int32_t> KernelTest::integers(int64_t n, int32_t low, int32_t high) {
  std::uniform_int_distribution<int32_t> uniform(low, high);
  std::vector<int32_t> values(n);
  for (int32_t& value : values) value = uniform(engine_);
  return values;
}

}  // namespace telar::backend::testing
