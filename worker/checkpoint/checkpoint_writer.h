// Saves a checkpoint and publishes it by one rename. Format and protocol: docs/formats/checkpoint.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/dtype.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"

namespace telar::checkpoint {

// A logical tensor, or a box of one that is added in several parts.
struct TensorPart {
  std::string name;
  TensorKind kind = TensorKind::kWeight;
  backend::DType dtype = backend::DType::kF32;
  std::vector<int64_t> shape;       // Of the whole tensor.
  std::span<const std::byte> data;  // Row-major; must stay as it is until publish() returns.
  std::vector<int64_t> offset;      // Of the box in each axis; offset and extent empty: the whole tensor.
  std::vector<int64_t> extent;
};

struct PublishResult {
  std::string path;                  // The published directory.
  uint64_t bytes = 0;                // Of its files.
  bool already_there = false;        // A good checkpoint of this step stood there and was left as it is.
  std::vector<std::string> removed;  // Old checkpoints that retention took away.
  std::vector<absl::Status>
      warnings;  // What went wrong without harm: the LATEST hint, retention, sweeping. To be logged.
};

// One save of one step. Not for several threads. A writer that is destroyed unpublished takes its files away.
//
// `attempt` is the allocation epoch. Attempts fence each other: a writer refuses (FAILED_PRECONDITION) when a greater
// attempt has published or is saving in this run, and takes away what lesser ones left unfinished.
class CheckpointWriter {
 public:
  static constexpr uint64_t kShardBytes = uint64_t{4} << 30;

  // Makes <run_dir>/ckpt when it is missing, sweeps it, and makes the directory that the save goes to. `files` must
  // outlive the writer. A shard is closed before it would pass `shard_bytes`; a larger part has one of its own.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> create(FileSystem& files, const std::string& run_dir,
                                                                  uint64_t step, uint64_t attempt,
                                                                  uint64_t shard_bytes = kShardBytes);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // INVALID_ARGUMENT names the tensor: data of another size than dtype and shape say, parts that do not agree.
  absl::Status add(TensorPart part);
  // `name` shares the elements of `tied_to`, which was added whole or in part before.
  absl::Status add_tied(const std::string& name, TensorKind kind, const std::string& tied_to);

  // Writes and syncs all files, verifies that every element is there once, publishes, points LATEST at it, and keeps
  // the `keep` newest complete checkpoints of the run (0: all). Nothing is removed before the new one was read back and
  // verified. Of `info` job, consumed_samples, seed, optimizer, spec_json and layout are taken; the rest is the
  // writer's. Call it once. On an error, which names the path, earlier checkpoints are as they were, and this one is
  // not visible (or, when only the last sync of the directory failed, visible and whole).
  absl::StatusOr<PublishResult> publish(Manifest info, uint32_t keep);

 private:
  CheckpointWriter(FileSystem& files, std::string run_dir, uint64_t step, uint64_t attempt, uint64_t shard_bytes);
  absl::Status sweep();
  absl::Status fence() const;
  absl::Status write_shards();
  absl::Status write_shard(std::span<const size_t> parts);
  absl::Status write_part(const TensorPart& part, class SafetensorsWriter& shard, Chunk& chunk);
  absl::Status commit();
  void point_latest();
  void retain(uint32_t keep);
  absl::Status discard(const std::string& path);  // Renames the directory to the trash, then removes it.

  FileSystem& files_;
  const std::string run_dir_, parent_, temp_, target_;
  const uint64_t step_, attempt_, shard_bytes_;
  std::vector<TensorPart> parts_;
  std::vector<size_t> part_tensor_;  // Index in manifest_.tensors of each part.
  Manifest manifest_;
  PublishResult result_;
  bool temp_exists_ = false;
};

}  // namespace telar::checkpoint
