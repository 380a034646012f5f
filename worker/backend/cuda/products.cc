#include "worker/backend/cuda/products.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/errors.h"

namespace telar::backend::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // What NVIDIA advises for Hopper.
constexpr int kCandidates = 16;
constexpr double kTuneFrom = 1 << 30;  // Multiply-adds; below, a product takes a few microseconds whatever is chosen.

cudaDataType vendor_type(DType dtype) {
  if (dtype == DType::kBF16) return CUDA_R_16BF;
  return dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

// Classes of alignment, not the alignment itself: else every offset would be tuned anew.
int alignment_of(const void* pointer, DType dtype) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address % 256 == 0) return 256;
  return address % 16 == 0 ? 16 : static_cast<int>(size_of(dtype));
}

// Whether cuBLASLt multiplies these types at all.
bool has_types(const Product& product) {
  if (product.a_type != product.b_type) return false;
  if (product.a_type == DType::kF32 && product.d_type != DType::kF32) return false;
  return product.bias == nullptr || product.bias_type == product.d_type;
}

template <typename T>
cublasStatus_t set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute, T value) {
  return cublasLtMatmulDescSetAttribute(op, attribute, &value, sizeof(value));
}

template <typename T>
cublasStatus_t set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
}

// The elapsed time between two points of a stream.
class Timer {
 public:
  Timer() {
    cudaEventCreate(&start_);
    cudaEventCreate(&stop_);
  }
  Timer(const Timer&) = delete;
  ~Timer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  void start(cudaStream_t stream) { cudaEventRecord(start_, stream); }
  // Blocks; infinity if anything failed.
  double stop(cudaStream_t stream) {
    float ms = 0;
    const bool ok = cudaEventRecord(stop_, stream) == cudaSuccess && cudaEventSynchronize(stop_) == cudaSuccess &&
                    cudaEventElapsedTime(&ms, start_, stop_) == cudaSuccess;
    return ok ? ms : std::numeric_limits<double>::infinity();
  }

 private:
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

// cuBLASLt adds the bias to a product that is rounded to its 16 bits already where rows are no whole number of 16
// bytes.
bool rounds_twice(const Product& product) {
  return product.bias != nullptr && product.d_type != DType::kF32 && (product.m % 8 != 0 || product.k % 8 != 0);
}

}  // namespace

struct Products::Plan {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  bool found = false;  // Else launch_product() does it.
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
    if (status == 0 && product.bias != nullptr) {
      status = set(op, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      if (status == 0) status = set(op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, vendor_type(product.bias_type));
      if (status == 0) status = set(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
    }
    return to_status(status, "cublasLtMatmulDescSetAttribute");
  }
};

Products::Products(cublasLtHandle_t handle, Workspaces& scratch) : handle_(handle), scratch_(scratch) {}

Products::~Products() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

absl::StatusOr<std::unique_ptr<Products>> Products::create(int device, Workspaces& scratch) {
  cublasLtHandle_t handle = nullptr;
  TELAR_RETURN_IF_ERROR(to_status(cublasLtCreate(&handle), "cublasLtCreate"));
  std::unique_ptr<Products> products(new Products(handle, scratch));
  const char* tuning = std::getenv("TELAR_TUNING");
  products->tuning_ = tuning == nullptr || std::string(tuning) != "0";
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
  return absl::StrCat(sign(transpose_a), sign(transpose_b), ",", m, "x", n, "x", k, ",", std::string(name_of(a_type)),
                      ",", std::string(name_of(d_type)), accumulate ? ",accumulate" : "", biased ? ",bias" : "",
                      ",align", a_alignment, "/", b_alignment, "/", d_alignment);
}

Products::Key Products::key_of(const Product& product) {
  return {.m = product.m,
          .n = product.n,
          .k = product.k,
          .transpose_a = product.transpose_a,
          .transpose_b = product.transpose_b,
          .accumulate = product.accumulate,
          .biased = product.bias != nullptr,
          .a_type = product.a_type,
          .b_type = product.b_type,
          .d_type = product.d_type,
          .a_alignment = alignment_of(product.a, product.a_type),
          .b_alignment = alignment_of(product.b, product.b_type),
          // The bias is read as the result is written.
          .d_alignment = std::min(alignment_of(product.d, product.d_type),
                                  product.bias == nullptr ? 256 : alignment_of(product.bias, product.bias_type))};
}

absl::Status Products::run(cudaStream_t stream, const Product& product) {
  if (!has_types(product) || rounds_twice(product)) return to_status(launch_product(stream, product), "product");
  const std::lock_guard lock(mutex_);
  absl::StatusOr<Plan*> plan = plan_for(stream, product);
  if (!plan.ok()) return plan.status();
  if (!(*plan)->found) return to_status(launch_product(stream, product), "product");
  absl::StatusOr<std::byte*> workspace = scratch_.get("product", stream, kWorkspaceBytes);
  if (!workspace.ok()) return workspace.status();
  if (product.bias != nullptr) {
    const cublasStatus_t status = set((*plan)->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
    TELAR_RETURN_IF_ERROR(to_status(status, "cublasLtMatmulDescSetAttribute"));
  }
  return to_status(launch(stream, product, **plan, (*plan)->algorithm, product.d, *workspace),
                   absl::StrCat("cublasLtMatmul ", product.m, " x ", product.n, " x ", product.k));
}

cublasStatus_t Products::launch(cudaStream_t stream, const Product& product, const Plan& plan,
                                const cublasLtMatmulAlgo_t& algorithm, void* d, void* workspace) const {
  const float one = 1, beta = product.accumulate ? 1 : 0;
  return cublasLtMatmul(handle_, plan.op, &one, product.a, plan.a, product.b, plan.b, &beta, d, plan.d, d, plan.d,
                        &algorithm, workspace, kWorkspaceBytes, stream);
}

absl::StatusOr<Products::Plan*> Products::plan_for(cudaStream_t stream, const Product& product) {
  const Key key = key_of(product);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
  auto plan = std::make_unique<Plan>();
  TELAR_RETURN_IF_ERROR(plan->describe(product));
  TELAR_RETURN_IF_ERROR(choose(stream, product, key, *plan));
  return (plans_[key] = std::move(plan)).get();
}

absl::Status Products::choose(cudaStream_t stream, const Product& product, const Key& key, Plan& plan) {
  if (file_ != nullptr) {
    const std::optional<cublasLtMatmulAlgo_t> kept = file_->find(key.text());
    if (kept.has_value() && usable(plan, *kept)) {
      plan.found = true;
      plan.algorithm = *kept;
      return absl::OkStatus();
    }
  }
  const std::vector<cublasLtMatmulAlgo_t> algorithms = candidates(key, plan);
  if (algorithms.empty()) return absl::OkStatus();
  plan.found = true;
  plan.algorithm = algorithms[0];
  const double work = static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k);
  if (!tuning_ || work < kTuneFrom || algorithms.size() == 1 || is_capturing(stream)) return absl::OkStatus();
  plan.algorithm = algorithms[fastest(stream, product, plan, algorithms)];
  if (file_ != nullptr) file_->add(key.text(), plan.algorithm);
  return absl::OkStatus();
}

// In the heuristic's order. Empty: none, whatever the reason.
std::vector<cublasLtMatmulAlgo_t> Products::candidates(const Key& key, const Plan& plan) const {
  cublasLtMatmulPreference_t preference = nullptr;
  if (cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return {};
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t attribute, int bytes) {
    set(preference, attribute, static_cast<uint32_t>(bytes));
  };
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Never in the type of the output: partial sums of 16 bits would be rounded.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.a_alignment);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.b_alignment);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.d_alignment);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.d_alignment);
  cublasLtMatmulHeuristicResult_t results[kCandidates];
  int count = 0;
  if (cublasLtMatmulAlgoGetHeuristic(handle_, plan.op, plan.a, plan.b, plan.d, plan.d, preference, kCandidates, results,
                                     &count) != CUBLAS_STATUS_SUCCESS) {
    count = 0;
  }
  cublasLtMatmulPreferenceDestroy(preference);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < count; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
  }
  return algorithms;
}

bool Products::usable(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle_, plan.op, plan.a, plan.b, plan.d, plan.d, &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kWorkspaceBytes;
}

// Index of the fastest; the first where nothing can be measured. Into a scratch result: the real one may be an input
// too (accumulate). Rounds over all candidates, the best round of each counts: clocks drift while this runs.
size_t Products::fastest(cudaStream_t stream, const Product& product, const Plan& plan,
                         const std::vector<cublasLtMatmulAlgo_t>& algorithms) {
  constexpr int kRounds = 3, kCalls = 3;
  const size_t bytes = static_cast<size_t>(product.m) * static_cast<size_t>(product.n) * size_of(product.d_type);
  const absl::StatusOr<std::byte*> workspace = scratch_.get("product", stream, kWorkspaceBytes);
  void* d = nullptr;
  if (!workspace.ok() || cudaMallocAsync(&d, bytes, stream) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  cudaMemsetAsync(d, 0, bytes, stream);
  Timer timer;
  const auto time = [&](size_t i, int calls) {
    bool ok = true;
    timer.start(stream);
    for (int call = 0; call < calls; ++call) {
      ok = launch(stream, product, plan, algorithms[i], d, *workspace) == CUBLAS_STATUS_SUCCESS && ok;
    }
    const double ms = timer.stop(stream);
    return ok ? ms / calls : std::numeric_limits<double>::infinity();
  };
  std::vector<double> best(algorithms.size(), std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < best.size(); ++i) {
    time(i, 1);  // Loads the kernel.
    best[i] = time(i, 1);
  }
  const double guess = *std::min_element(best.begin(), best.end());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < best.size(); ++i) {
      if (best[i] <= 1.5 * guess) best[i] = std::min(best[i], time(i, kCalls));
    }
  }
  cudaFreeAsync(d, stream);
  return static_cast<size_t>(std::min_element(best.begin(), best.end()) - best.begin());
}

}  // namespace telar::backend::cuda
