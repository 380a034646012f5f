#include "worker/backend/cuda/products.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/errors.h"
#include "worker/backend/cuda/gelu.h"

namespace telar::backend::cuda {
namespace {

constexpr size_t kCandidates = 40;
constexpr int kStarts = 3;        // Proposed algorithms whose neighbours are looked at, fastest first.
constexpr int kNeighbours = 8;    // Of one candidate, so that some are left for what they lead to.
constexpr double kNear = 1.15;    // A candidate slower than this times the best of its first call is out.
constexpr size_t kFinalists = 8;  // Beside the heuristic's first choice.
constexpr double kRoundsMs = 400;
constexpr double kTuneFrom = 1 << 30;  // Multiply-adds; below, a product takes a few microseconds whatever is chosen.

cudaDataType vendor_type(DType dtype) {
  if (dtype == DType::kBF16) return CUDA_R_16BF;
  if (dtype == DType::kF8E4M3) return CUDA_R_8F_E4M3;
  if (dtype == DType::kF8E5M2) return CUDA_R_8F_E5M2;
  return dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

cublasLtMatmulMatrixScale_t vendor_mode(Fp8Scaled scaled) {
  if (scaled == Fp8Scaled::kRuns) return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  return scaled == Fp8Scaled::kSquares ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                       : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

// Classes of alignment, not the alignment itself: else every offset would be tuned anew.
int alignment_of(const void* pointer, DType dtype) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address % 256 == 0) return 256;
  return address % 16 == 0 ? 16 : static_cast<int>(size_of(dtype));
}

// Whether cuBLASLt multiplies these types at all.
bool has_types(const Product& product) {
  if (is_fp8(product.a_type)) return is_fp8(product.b_type);
  if (product.a_type != product.b_type) return false;
  if (product.a_type == DType::kF32 && product.d_type != DType::kF32) return false;
  return product.bias == nullptr || product.bias_type == product.d_type;
}

template <typename T>
cublasStatus_t set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute, T value) {
  return cublasLtMatmulDescSetAttribute(op, attribute, &value, sizeof(value));
}

// cuBLASLt adds the bias to a product that is rounded to its 16 bits already where rows are no whole number of 16
// bytes.
bool rounds_twice(const Product& product) {
  return product.bias != nullptr && product.d_type != DType::kF32 && (product.m % 8 != 0 || product.k % 8 != 0);
}

// What the epilogue that also writes `before` asks for, as far as has_types() does not.
bool fuses_gelu(const Product& product) {
  return product.d_type != DType::kF32 && product.a_type == product.d_type && product.m % 8 == 0 &&
         product.k % 8 == 0 && alignment_of(product.before, product.d_type) >= 16 &&
         alignment_of(product.d, product.d_type) >= 16;
}

Product without_gelu(const Product& product) {
  Product plain = product;
  plain.d = product.before;
  plain.before = nullptr;
  return plain;
}

cublasLtEpilogue_t epilogue_of(const Product& product) {
  if (product.before != nullptr) {
    return product.bias == nullptr ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  return product.bias == nullptr ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BIAS;
}

// The heuristic offers algorithms that then refuse pointers to scales that are not aligned.
bool is_aligned_fp8(const Product& product) {
  for (const void* pointer : {product.a, product.b, static_cast<const void*>(product.d),
                              static_cast<const void*>(product.a_scale), static_cast<const void*>(product.b_scale)}) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return false;
  }
  return true;
}

absl::Status no_fp8(const Product& product) {
  return absl::UnimplementedError(absl::StrCat(
      "cuBLASLt has no product ", product.m, " x ", product.n, " x ", product.k, " of ",
      std::string(name_of(product.a_type)), " and ", std::string(name_of(product.b_type)), " into ",
      std::string(name_of(product.d_type)), product.a_scaled == Fp8Scaled::kWhole ? "" : " scaled in blocks",
      " here: it takes a GPU of compute capability ",
      product.a_scaled == Fp8Scaled::kWhole ? "8.9 or later" : "9.0 and cuBLASLt 12.9 or later",
      ", and operands and scales aligned to 16 bytes"));
}

struct Candidate {
  cublasLtMatmulAlgo_t algorithm;
  double ms;                 // Of its first call after the one that loads it.
  bool is_explored = false;  // Its neighbours were looked at.
};

bool holds(const std::vector<Candidate>& candidates, const cublasLtMatmulAlgo_t& algorithm) {
  return std::any_of(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
    return std::memcmp(&candidate.algorithm, &algorithm, sizeof(algorithm)) == 0;
  });
}

double least(const std::vector<Candidate>& candidates) {
  double ms = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : candidates) ms = std::min(ms, candidate.ms);
  return ms;
}

// The proposed algorithms, then neighbours of the kStarts fastest of them and of the fastest so far, each with the time
// of one call.
std::vector<Candidate> explore(cublasLtHandle_t handle, const ProductDescription& description,
                               const std::vector<cublasLtMatmulAlgo_t>& proposed,
                               const std::function<double(const cublasLtMatmulAlgo_t&)>& time) {
  std::vector<Candidate> all;
  for (const cublasLtMatmulAlgo_t& algorithm : proposed) all.push_back({algorithm, time(algorithm)});
  for (int turn = 0; all.size() < kCandidates; ++turn) {
    const size_t eligible = turn < kStarts ? proposed.size() : all.size();
    Candidate* base = nullptr;
    for (size_t i = 0; i < eligible; ++i) {
      if (!all[i].is_explored && (base == nullptr || all[i].ms < base->ms)) base = &all[i];
    }
    if (base == nullptr || base->ms > kNear * least(all)) {
      if (turn < kStarts) continue;
      break;
    }
    base->is_explored = true;
    int added = 0;
    for (const cublasLtMatmulAlgo_t& algorithm : neighbours(handle, description, base->algorithm)) {
      if (added == kNeighbours || all.size() == kCandidates) break;
      if (holds(all, algorithm)) continue;
      all.push_back({algorithm, time(algorithm)});  // `base` is no more.
      ++added;
    }
  }
  return all;
}

// Those to be compared, as indices: the heuristic's first choice, and the fastest others that are near the fastest.
std::vector<size_t> finalists_of(const std::vector<Candidate>& all) {
  std::vector<size_t> finalists;
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].ms <= kNear * least(all)) finalists.push_back(i);
  }
  std::stable_sort(finalists.begin(), finalists.end(), [&](size_t a, size_t b) { return all[a].ms < all[b].ms; });
  finalists.resize(std::min(finalists.size(), kFinalists));
  finalists.insert(finalists.begin(), 0);
  return finalists;
}

// What the product reads and writes.
size_t bytes_of(const Product& product) {
  const auto m = static_cast<size_t>(product.m), n = static_cast<size_t>(product.n), k = static_cast<size_t>(product.k);
  return m * k * size_of(product.a_type) + k * n * size_of(product.b_type) + m * n * size_of(product.d_type);
}

}  // namespace

struct Products::Plan : ProductDescription {
  bool found = false;  // Else launch_product() does it, or the GELU is a kernel of its own.
  cublasLtMatmulAlgo_t algorithm{};

  Plan() = default;
  Plan(const Plan&) = delete;
  ~Plan() {
    if (op != nullptr) cublasLtMatmulDescDestroy(op);
    for (cublasLtMatrixLayout_t layout : {a, b, d}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }

  absl::Status describe(const Product& product) {
    const auto layout = [](cublasLtMatrixLayout_t* to, DType type, bool transposed, int64_t rows, int64_t cols) {
      if (transposed) std::swap(rows, cols);
      return to_status(cublasLtMatrixLayoutCreate(to, vendor_type(type), rows, cols, rows),
                       "cublasLtMatrixLayoutCreate");
    };
    TELAR_RETURN_IF_ERROR(layout(&a, product.a_type, product.transpose_a, product.m, product.k));
    TELAR_RETURN_IF_ERROR(layout(&b, product.b_type, product.transpose_b, product.k, product.n));
    TELAR_RETURN_IF_ERROR(layout(&d, product.d_type, false, product.m, product.n));
    cublasStatus_t status = cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    TELAR_RETURN_IF_ERROR(to_status(status, "cublasLtMatmulDescCreate"));
    const auto operation = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    status = set(op, CUBLASLT_MATMUL_DESC_TRANSA, operation(product.transpose_a));
    if (status == 0) status = set(op, CUBLASLT_MATMUL_DESC_TRANSB, operation(product.transpose_b));
    if (status == 0) status = set(op, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(product));
    if (status == 0 && product.bias != nullptr) {
      status = set(op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, vendor_type(product.bias_type));
    }
    if (status == 0 && product.before != nullptr) status = set(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.m);
    if (status == 0 && is_fp8(product.a_type)) {
      status = set(op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, vendor_mode(product.a_scaled));
    }
    if (status == 0 && is_fp8(product.b_type)) {
      status = set(op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, vendor_mode(product.b_scaled));
    }
    if (status == 0 && product.fast) status = set(op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    if (status == 0) status = point(product);
    return to_status(status, "cublasLtMatmulDescSetAttribute");
  }
  // To the bias, `before` and the scales of the next call.
  cublasStatus_t point(const Product& product) const {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (product.bias != nullptr) status = set(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
    if (status == 0 && product.before != nullptr) {
      status = set(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.before);
    }
    if (status == 0 && product.a_scale != nullptr) {
      status = set(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.a_scale);
    }
    if (status == 0 && product.b_scale != nullptr) {
      status = set(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.b_scale);
    }
    return status;
  }
};

Products::Products(cublasLtHandle_t handle, Workspaces& workspaces) : handle_(handle), workspaces_(workspaces) {}

Products::~Products() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

absl::StatusOr<std::unique_ptr<Products>> Products::create(int device, bool deterministic, Workspaces& workspaces) {
  cublasLtHandle_t handle = nullptr;
  TELAR_RETURN_IF_ERROR(to_status(cublasLtCreate(&handle), "cublasLtCreate"));
  std::unique_ptr<Products> products(new Products(handle, workspaces));
  const char* tuning = std::getenv("TELAR_TUNING");
  products->tuning_ = !deterministic && (tuning == nullptr || std::string(tuning) != "0");
  const char* gelu = std::getenv("TELAR_GELU");
  if (gelu != nullptr && std::string(gelu) == "fused") products->gelu_ = Gelu::kFused;
  if (gelu != nullptr && std::string(gelu) == "apart") products->gelu_ = Gelu::kApart;
  const char* path = std::getenv("TELAR_TUNING_FILE");
  if (path == nullptr || *path == '\0') return products;
  cudaDeviceProp properties;
  TELAR_RETURN_IF_ERROR(to_status(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
  auto file = TuningFile::open(path, absl::StrCat(properties.name, "/cublasLt-", cublasLtGetVersion()));
  if (!file.ok()) return file.status();
  products->file_ = *std::move(file);
  return products;
}

std::string Products::Key::text() const {
  const auto sign = [](bool transposed) { return transposed ? "T" : "N"; };
  const auto name = [](Fp8Scaled scaled) {
    return scaled == Fp8Scaled::kWhole ? "whole" : scaled == Fp8Scaled::kRuns ? "runs" : "squares";
  };
  const std::string a(name_of(a_type)), b(name_of(b_type)), bias(name_of(bias_type));
  return absl::StrCat(sign(transpose_a), sign(transpose_b), ",", m, "x", n, "x", k, ",", a == b ? a : a + "*" + b, ",",
                      std::string(name_of(d_type)), accumulate ? ",accumulate" : "", biased ? ",bias" : "",
                      biased && bias_type != d_type ? "-" + bias : "", gelu ? ",gelu" : "", fast ? ",fast" : "",
                      a_scaled == Fp8Scaled::kWhole ? "" : absl::StrCat(",", name(a_scaled), "*", name(b_scaled)),
                      ",align", a_alignment, "/", b_alignment, "/", d_alignment);
}

Products::Key Products::key_of(const Product& product) {
  // Bias and `before` are touched where the result is.
  int d_alignment = alignment_of(product.d, product.d_type);
  if (product.bias != nullptr) d_alignment = std::min(d_alignment, alignment_of(product.bias, product.bias_type));
  if (product.before != nullptr) d_alignment = std::min(d_alignment, alignment_of(product.before, product.d_type));
  return {.m = product.m,
          .n = product.n,
          .k = product.k,
          .transpose_a = product.transpose_a,
          .transpose_b = product.transpose_b,
          .accumulate = product.accumulate,
          .biased = product.bias != nullptr,
          .gelu = product.before != nullptr,
          .fast = product.fast,
          .a_type = product.a_type,
          .b_type = product.b_type,
          .d_type = product.d_type,
          .bias_type = product.bias == nullptr ? DType::kF32 : product.bias_type,
          .a_scaled = product.a_scaled,
          .b_scaled = product.b_scaled,
          .a_alignment = alignment_of(product.a, product.a_type),
          .b_alignment = alignment_of(product.b, product.b_type),
          .d_alignment = d_alignment};
}

absl::Status Products::run(cudaStream_t stream, const Product& product) {
  const bool has_gelu = product.before != nullptr;
  if (is_fp8(product.a_type) && !is_aligned_fp8(product)) return no_fp8(product);
  if (has_types(product) && !rounds_twice(product) && (!has_gelu || fuses_gelu(product))) {
    const std::lock_guard lock(mutex_);
    absl::StatusOr<Plan*> plan = plan_for(stream, product);
    if (!plan.ok()) return plan.status();
    if ((*plan)->found) {
      absl::StatusOr<std::byte*> workspace = workspaces_.get("product", stream, kProductWorkspaceBytes);
      if (!workspace.ok()) return workspace.status();
      return to_status(launch(stream, product, **plan, (*plan)->algorithm, product.d, *workspace),
                       absl::StrCat("cublasLtMatmul ", product.m, " x ", product.n, " x ", product.k));
    }
  }
  if (is_fp8(product.a_type)) return no_fp8(product);
  if (!has_gelu) return to_status(launch_product(stream, product), "product");
  TELAR_RETURN_IF_ERROR(run(stream, without_gelu(product)));
  return to_status(launch_gelu(stream, product.d_type, product.m * product.n, product.before, product.d), "gelu");
}

cublasStatus_t Products::launch(cudaStream_t stream, const Product& product, const Plan& plan,
                                const cublasLtMatmulAlgo_t& algorithm, void* d, void* workspace) const {
  const float one = 1, beta = product.accumulate ? 1 : 0;
  if (const cublasStatus_t status = plan.point(product); status != CUBLAS_STATUS_SUCCESS) return status;
  return cublasLtMatmul(handle_, plan.op, &one, product.a, plan.a, product.b, plan.b, &beta, d, plan.d, d, plan.d,
                        &algorithm, workspace, kProductWorkspaceBytes, stream);
}

absl::StatusOr<Products::Plan*> Products::plan_for(cudaStream_t stream, const Product& product) {
  const Key key = key_of(product);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
  auto plan = std::make_unique<Plan>();
  plan->a_alignment = key.a_alignment;
  plan->b_alignment = key.b_alignment;
  plan->d_alignment = key.d_alignment;
  plan->in_blocks = product.a_scaled != Fp8Scaled::kWhole;
  TELAR_RETURN_IF_ERROR(plan->describe(product));
  TELAR_RETURN_IF_ERROR(choose(stream, product, key, *plan));
  return (plans_[key] = std::move(plan)).get();
}

absl::Status Products::choose(cudaStream_t stream, const Product& product, const Key& key, Plan& plan) {
  if (key.gelu && gelu_ == Gelu::kApart) return absl::OkStatus();
  const auto kept = file_ == nullptr ? std::nullopt : file_->find(key.text());
  if (kept.has_value() && kept->algorithm.has_value() && is_usable(handle_, plan, *kept->algorithm)) {
    plan.found = true;
    plan.algorithm = *kept->algorithm;
    return absl::OkStatus();
  }
  if (kept.has_value() && !kept->algorithm.has_value() && key.gelu && gelu_ == Gelu::kMeasured) return absl::OkStatus();
  const std::vector<cublasLtMatmulAlgo_t> proposed = proposed_algorithms(handle_, plan);
  if (proposed.empty()) return absl::OkStatus();
  const double work = static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k);
  const bool tunes = tuning_ && work >= kTuneFrom && !is_capturing(stream);
  plan.found = !key.gelu || gelu_ == Gelu::kFused;
  plan.algorithm = proposed[0];
  return tunes ? tune(stream, product, key, plan, proposed) : absl::OkStatus();
}

// The result goes where it belongs, or to a scratch one where that is an input too (accumulate). Leaves the plan as it
// is where there is no memory for that.
absl::Status Products::tune(cudaStream_t stream, const Product& product, const Key& key, Plan& plan,
                            const std::vector<cublasLtMatmulAlgo_t>& proposed) {
  const absl::StatusOr<std::byte*> workspace = workspaces_.get("product", stream, kProductWorkspaceBytes);
  if (!workspace.ok()) return workspace.status();
  const Product plain = without_gelu(product);
  const absl::StatusOr<Plan*> plain_plan = key.gelu ? plan_for(stream, plain) : nullptr;
  if (!plain_plan.ok()) return plain_plan.status();
  void* d = product.d;
  const size_t bytes = static_cast<size_t>(product.m) * static_cast<size_t>(product.n) * size_of(product.d_type);
  if (product.accumulate && cudaMallocAsync(&d, bytes, stream) != cudaSuccess) {
    cudaGetLastError();
    return absl::OkStatus();
  }
  if (product.accumulate) cudaMemsetAsync(d, 0, bytes, stream);

  Tuner tuner(stream);
  const auto launch_of = [&](const cublasLtMatmulAlgo_t& algorithm) -> Tuner::Launch {
    return [&, algorithm] { return launch(stream, product, plan, algorithm, d, *workspace) == CUBLAS_STATUS_SUCCESS; };
  };
  const std::vector<Candidate> all =
      explore(handle_, plan, proposed, [&](const auto& algorithm) { return tuner.once(launch_of(algorithm)); });
  const std::vector<size_t> finalists = finalists_of(all);
  std::vector<Tuner::Contender> contenders;
  for (size_t i : finalists) contenders.push_back({launch_of(all[i].algorithm), all[i].ms});
  if (key.gelu) {
    const Tuner::Launch apart = [&] {
      const Plan& with = **plain_plan;
      const bool ok = with.found ? launch(stream, plain, with, with.algorithm, plain.d, *workspace) == 0
                                 : launch_product(stream, plain) == cudaSuccess;
      return ok && launch_gelu(stream, plain.d_type, plain.m * plain.n, plain.d, d) == cudaSuccess;
    };
    contenders.push_back({apart, tuner.once(apart)});
  }
  double round_ms = 0;
  for (const Tuner::Contender& contender : contenders) round_ms += std::max(Tuner::turn_ms(), 2 * contender.ms);
  const double least_rounds = Tuner::turn_ms() < 100 ? 3 : 1;  // Long turns see the drift of clocks themselves.
  const int rounds =
      std::isfinite(round_ms) ? static_cast<int>(std::clamp(kRoundsMs / round_ms, least_rounds, 9.0)) : 3;
  const bool is_small = bytes_of(product) < 2 * tuner.cache_bytes();
  const std::vector<double> times = tuner.compare(contenders, rounds, is_small);
  const auto last = times.begin() + static_cast<std::ptrdiff_t>(finalists.size());
  const auto best = std::min_element(times.begin(), last);
  TuningResult result{.candidates = static_cast<int>(all.size()),
                      .first_ms = times[0],
                      .proposed_ms = times[0],
                      .best_ms = *best,
                      .multiply_adds = static_cast<double>(product.m) * static_cast<double>(product.n) *
                                       static_cast<double>(product.k)};
  for (size_t i = 0; i < finalists.size(); ++i) {
    if (finalists[i] < proposed.size()) result.proposed_ms = std::min(result.proposed_ms, times[i]);
  }
  if (!std::isfinite(*best)) {  // Nothing ran; the caller's own call says why.
    if (product.accumulate) cudaFreeAsync(d, stream);
    return absl::OkStatus();
  }
  plan.algorithm = all[finalists[static_cast<size_t>(best - times.begin())]].algorithm;
  plan.found = true;
  if (key.gelu) {
    result.apart_ms = times.back();
    result.gelu_deviation = gelu_deviation(stream, product, launch_of(plan.algorithm));
    const bool is_fused_better = result.gelu_deviation <= 1 && result.best_ms <= result.apart_ms;
    plan.found = gelu_ == Gelu::kFused || is_fused_better;
    result.is_apart = !plan.found;
  }
  if (product.accumulate) cudaFreeAsync(d, stream);
  cudaGetLastError();  // Of candidates that failed.
  TuningFile::Choice choice;
  if (plan.found) choice.algorithm = plan.algorithm;
  if (file_ != nullptr) file_->add(key.text(), choice, plan.found ? result.best_ms : result.apart_ms);
  log_tuning(key.text(), result);
  return absl::OkStatus();
}

// Infinity where it could not be measured.
double Products::gelu_deviation(cudaStream_t stream, const Product& product, const Tuner::Launch& launch) {
  float worst = std::numeric_limits<float>::infinity();
  void* memory = nullptr;
  if (cudaMallocAsync(&memory, sizeof(worst), stream) != cudaSuccess) return worst;
  float measured = worst;
  if (launch() &&
      launch_gelu_deviation(stream, product.d_type, product.m * product.n, product.before, product.d,
                            static_cast<float*>(memory)) == cudaSuccess &&
      cudaMemcpyAsync(&measured, memory, sizeof(measured), cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
      cudaStreamSynchronize(stream) == cudaSuccess) {
    worst = measured;
  }
  cudaFreeAsync(memory, stream);
  return worst;
}

}  // namespace telar::backend::cuda
