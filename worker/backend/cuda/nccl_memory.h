// Memory that NCCL can map into the peers of one machine, so that its copy engines gather without a multiprocessor
// (NCCL's symmetric windows): what a device allocates with TELAR_NCCL_CE=1 in the environment, which must be there on
// all ranks or on none.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace telar::backend::cuda {

// TELAR_NCCL_CE=1.
bool gathers_by_copy_engines();
// What NCCL finds in its environment, which it reads once, at its first call. Before that.
void prepare_nccl_environment();

// Lives as long as anyone has it: windows go before the memory that they show.
class NcclMemory {
 public:
  // At least `bytes`, of the current device. RESOURCE_EXHAUSTED: not to be had.
  static absl::StatusOr<std::shared_ptr<NcclMemory>> allocate(size_t bytes);
  // Which of all that are alive the byte is in; null: none. Threads: any.
  static std::shared_ptr<NcclMemory> find(const std::byte* address);
  ~NcclMemory();
  NcclMemory(const NcclMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }  // Whole pages of the device.

 private:
  NcclMemory(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* const data_;
  const size_t bytes_;
};

}  // namespace telar::backend::cuda
