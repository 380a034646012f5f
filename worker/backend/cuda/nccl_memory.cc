#include "worker/backend/cuda/nccl_memory.h"

#include <nccl.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace telar::backend::cuda {
namespace {

constexpr size_t kDevicePage = size_t{2} << 20;

// By address: all that is alive.
struct SharedBlocks {
  std::mutex mutex;
  std::map<uintptr_t, std::weak_ptr<NcclMemory>> by_address;  // Guarded by mutex.
};
SharedBlocks& shared_blocks() {
  static auto* const blocks = new SharedBlocks;  // Outlives whatever is freed at the end of the process.
  return *blocks;
}

}  // namespace

bool gathers_by_copy_engines() {
  const char* const wanted = std::getenv("TELAR_NCCL_CE");
  return wanted != nullptr && std::string_view(wanted) == "1";
}

void prepare_nccl_environment() {
  static std::once_flag once;
  std::call_once(once, [] {
    setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
    setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  });
}

absl::StatusOr<std::shared_ptr<NcclMemory>> NcclMemory::allocate(size_t bytes) {
  prepare_nccl_environment();
  const size_t whole = (bytes + kDevicePage - 1) / kDevicePage * kDevicePage;
  void* data = nullptr;
  if (const ncclResult_t result = ncclMemAlloc(&data, whole); result != ncclSuccess) {
    return absl::ResourceExhaustedError(absl::StrCat("ncclMemAlloc of ", whole, " bytes: ", ncclGetErrorString(result),
                                                     ": ", ncclGetLastError(nullptr)));
  }
  std::shared_ptr<NcclMemory> memory(new NcclMemory(static_cast<std::byte*>(data), whole));
  SharedBlocks& all = shared_blocks();
  const std::lock_guard lock(all.mutex);
  all.by_address[reinterpret_cast<uintptr_t>(data)] = memory;
  return memory;
}

NcclMemory::~NcclMemory() {
  {
    SharedBlocks& all = shared_blocks();
    const std::lock_guard lock(all.mutex);
    all.by_address.erase(reinterpret_cast<uintptr_t>(data_));
  }
  ncclMemFree(data_);
}

std::shared_ptr<NcclMemory> NcclMemory::find(const std::byte* address) {
  SharedBlocks& all = shared_blocks();
  const std::lock_guard lock(all.mutex);
  const auto behind = all.by_address.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (behind == all.by_address.begin()) return nullptr;
  const std::shared_ptr<NcclMemory> memory = std::prev(behind)->second.lock();
  return memory != nullptr && address < memory->data() + memory->bytes() ? memory : nullptr;
}

}  // namespace telar::backend::cuda
