#include "worker/checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/checkpoint/safetensors.h"

namespace telar::checkpoint {
namespace {

using backend::DType;
using Json = nlohmann::ordered_json;

// Elements looked at together: as many as a chunk of f32 has, so that few chunks are read twice.
constexpr int64_t kElementsAtOnce = int64_t{16} << 20;

template <typename T>
double value_at(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return static_cast<double>(static_cast<float>(value));
}

double value_at(DType dtype, const std::byte* data, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return value_at<float>(data, index);
    case DType::kBF16:
      return value_at<backend::Bf16>(data, index);
    case DType::kF16:
      return value_at<backend::F16>(data, index);
    case DType::kI32: {
      int32_t value;
      std::memcpy(&value, data + static_cast<size_t>(index) * sizeof value, sizeof value);
      return value;
    }
    case DType::kU8:
      return static_cast<double>(data[index]);
    case DType::kF8E4M3:
      return value_at<backend::F8E4M3>(data, index);
    case DType::kF8E5M2:
      return value_at<backend::F8E5M2>(data, index);
  }
  return 0;
}

void add_element(double a, double b, TensorComparison& into) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return;
  ++into.differing;
  const bool finite = std::isfinite(a) && std::isfinite(b);
  const double absolute = finite ? std::fabs(a - b) : std::numeric_limits<double>::infinity();
  const double greater = std::max(std::fabs(a), std::fabs(b));
  into.max_absolute = std::max(into.max_absolute, absolute);
  into.max_relative = std::max(into.max_relative, finite ? absolute / greater : 2.0);
}

absl::Status compare_values(const CheckpointReader& a, const CheckpointReader& b, const TensorEntry& in_a, DType b_type,
                            TensorComparison& into) {
  std::vector<std::byte> from_a, from_b;
  for (int64_t first = 0; first < into.elements; first += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, into.elements - first);
    from_a.resize(static_cast<size_t>(count) * backend::size_of(in_a.dtype));
    from_b.resize(static_cast<size_t>(count) * backend::size_of(b_type));
    absl::Status status = a.read_range(in_a.name, in_a.kind, first, count, from_a);
    if (status.ok()) status = b.read_range(in_a.name, in_a.kind, first, count, from_b);
    if (!status.ok()) return status;
    if (in_a.dtype == b_type && from_a == from_b) continue;
    if (into.difference == Difference::kNone) into.difference = Difference::kValues;
    for (int64_t i = 0; i < count; ++i) {
      add_element(value_at(in_a.dtype, from_a.data(), i), value_at(b_type, from_b.data(), i), into);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorComparison> compare_tensor(const CheckpointReader& a, const CheckpointReader& b,
                                                const TensorEntry& in_a) {
  TensorComparison result{.name = in_a.name, .kind = in_a.kind};
  const TensorEntry* in_b = b.manifest().find(in_a.name, in_a.kind);
  if (in_b == nullptr) {
    result.difference = Difference::kOnlyInA;
    return result;
  }
  if (in_a.shape != in_b->shape) {
    result.difference = Difference::kShape;
    result.note = absl::StrCat("[", absl::StrJoin(in_a.shape, ", "), "] and [", absl::StrJoin(in_b->shape, ", "), "]");
    return result;
  }
  if (in_a.dtype != in_b->dtype) {
    result.difference = Difference::kDType;
    result.note = absl::StrCat(dtype_name(in_a.dtype), " and ", dtype_name(in_b->dtype));
  }
  result.elements = 1;
  for (const int64_t extent : in_a.shape) result.elements *= extent;
  const absl::Status status = compare_values(a, b, in_a, in_b->dtype, result);
  return status.ok() ? absl::StatusOr<TensorComparison>(result) : status;
}

void compare_json(const Json* a, const Json* b, const std::string& path, std::vector<SpecDifference>& found) {
  if (a != nullptr && b != nullptr && a->is_object() && b->is_object()) {
    const auto below = [&](const std::string& key) { return path.empty() ? key : absl::StrCat(path, ".", key); };
    for (const auto& [key, value] : a->items()) {
      compare_json(&value, b->contains(key) ? &b->at(key) : nullptr, below(key), found);
    }
    for (const auto& [key, value] : b->items()) {
      if (!a->contains(key)) compare_json(nullptr, &value, below(key), found);
    }
    return;
  }
  const std::string in_a = a == nullptr ? "" : a->dump(), in_b = b == nullptr ? "" : b->dump();
  if (in_a != in_b) found.push_back({path, in_a, in_b});
}

Json spec_of(const Manifest& manifest) {
  Json spec = Json::parse(manifest.spec_json, nullptr, false);
  return spec.is_object() ? spec : Json::object();
}

Json position_of(const Manifest& manifest) {
  Json json = {{"step", manifest.step}, {"consumed_samples", manifest.consumed_samples}, {"seed", manifest.seed}};
  if (manifest.optimizer.has_value()) {
    json["optimizer"] = {{"applied_steps", manifest.optimizer->applied_steps},
                         {"skipped_steps", manifest.optimizer->skipped_steps},
                         {"good_steps", manifest.optimizer->good_steps},
                         {"loss_scale", manifest.optimizer->loss_scale}};
  }
  return json;
}

}  // namespace

absl::StatusOr<Comparison> compare_checkpoints(const CheckpointReader& a, const CheckpointReader& b) {
  Comparison result;
  for (const TensorEntry& tensor : a.manifest().tensors) {
    auto compared = compare_tensor(a, b, tensor);
    if (!compared.ok()) return compared.status();
    result.tensors.push_back(*std::move(compared));
  }
  for (const TensorEntry& tensor : b.manifest().tensors) {
    if (a.manifest().find(tensor.name, tensor.kind) != nullptr) continue;
    result.tensors.push_back({.name = tensor.name, .kind = tensor.kind, .difference = Difference::kOnlyInB});
  }
  const Json spec_a = spec_of(a.manifest()), spec_b = spec_of(b.manifest());
  compare_json(&spec_a, &spec_b, "", result.spec);
  const Json at_a = position_of(a.manifest()), at_b = position_of(b.manifest());
  compare_json(&at_a, &at_b, "", result.position);
  return result;
}

}  // namespace telar::checkpoint
