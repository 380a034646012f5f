#include "worker/backend/cuda/library_ops.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/cuda_library_ops.h"
#include "worker/backend/cuda/errors.h"

namespace telar::backend::cuda {

absl::StatusOr<std::unique_ptr<LibraryOps>> LibraryOps::create(int device, bool deterministic) {
  TELAR_RETURN_IF_ERROR(to_status(cudaSetDevice(device), absl::StrCat("cudaSetDevice(", device, ")")));
  auto ops = std::make_unique<CudaLibraryOps>();
  TELAR_RETURN_IF_ERROR(ops->open(device, deterministic));
  return ops;
}

absl::Status CudaLibraryOps::open(int device, bool deterministic) {
  absl::StatusOr<std::unique_ptr<Products>> products = Products::create(device, deterministic, workspaces_);
  if (!products.ok()) return products.status();
  absl::StatusOr<std::unique_ptr<Sdpa>> sdpa = Sdpa::create(deterministic, workspaces_);
  if (!sdpa.ok()) return sdpa.status();
  products_ = *std::move(products);
  sdpa_ = *std::move(sdpa);
  return absl::OkStatus();
}

}  // namespace telar::backend::cuda
