// What a rank saves, copied behind a step into memory of the host (engine/host_copy.h): the copy runs beside the next
// step, of which only the update waits for it, and is read while many more steps do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/device.h"
#include "worker/engine/host_copy.h"
#include "worker/parallel/flat_layout.h"

namespace telar::train {

class Snapshot {
 public:
  // Flat f32 tensors of one layout, such as masters and moments, by number.
  struct Sources {
    size_t kinds = 0;
    // Where a piece begins on the device; the pieces of a bucket are as far apart there as their `first` say.
    std::function<const std::byte*(size_t kind, const parallel::Piece& piece)> locate;
    std::span<const std::byte> extra;  // Copied along: a few bytes on the device.
  };

  // For `pieces`, in storage order as FlatLayout::pieces() and share_of() give them.
  static absl::StatusOr<std::unique_ptr<Snapshot>> create(backend::Device& device,
                                                          std::span<const parallel::Piece> pieces,
                                                          const Sources& sources);
  // The host memory that one takes, which may be asked before.
  static uint64_t bytes_of(std::span<const parallel::Piece> pieces, size_t kinds, uint64_t extra_bytes);
  // Takes and waits: see there.
  engine::HostCopy& copy() { return *copy_; }

  // When wait() has returned; any number of threads. A part of what is held.
  absl::Status read(size_t kind, const parallel::Piece& piece, std::span<float> out) const;
  std::span<const std::byte> extra() const { return copy_->memory().subspan(extra_offset_, extra_bytes_); }
  uint64_t bytes() const { return copy_->memory().size(); }

 private:
  // Elements of a bucket that are copied as one: pieces, and padding between them.
  struct Run {
    int bucket = 0;
    parallel::Range range;
    uint64_t offset = 0;                   // Bytes, in the memory of a kind.
    std::vector<const std::byte*> device;  // By kind.
  };
  Snapshot() = default;
  static std::vector<Run> runs_of(std::span<const parallel::Piece> pieces, const Sources& sources);
  // Gives the runs their places one behind the other; returns where the last ends.
  static uint64_t place(std::vector<Run>& runs);

  std::vector<Run> runs_;  // By bucket and range.
  uint64_t kind_bytes_ = 0, extra_offset_ = 0, extra_bytes_ = 0;
  std::unique_ptr<engine::HostCopy> copy_;
};

}  // namespace telar::train
