// Reads a published checkpoint, in any layout. Format: docs/formats/checkpoint.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/boxes.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/weight_source.h"

namespace telar::checkpoint {

// Immutable after opening; any number of threads may read. `files` must outlive it.
class CheckpointReader : public WeightSource {
 public:
  // Verifies the manifest, and of each shard its size, its header, and that every chunk is there with the dtype and
  // shape that the manifest gives; tensor bytes are not read. Errors name file and tensor: DATA_LOSS for damage,
  // FAILED_PRECONDITION for a newer format, else as FileSystem.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> open(FileSystem& files, const std::string& directory);

  const std::string& path() const override { return path_; }
  const Manifest& manifest() const { return manifest_; }

  // Reads every byte and compares all CRCs. DATA_LOSS names the file and the tensor that is damaged.
  absl::Status verify() const;
  // A whole logical tensor, row-major, in its stored dtype; ties are followed. NOT_FOUND for a name and kind that is
  // not there, INVALID_ARGUMENT for a buffer of another size, DATA_LOSS naming tensor, file and bytes when the CRC of
  // a chunk differs. After an error the contents of `out` are unspecified.
  absl::Status read(std::string_view name, TensorKind kind, std::span<std::byte> out) const;
  // The elements [first, first + count) of the flattened tensor. Reads the chunks that it touches, whole, so as to
  // verify them, and no others.
  absl::Status read_range(std::string_view name, TensorKind kind, int64_t first, int64_t count,
                          std::span<std::byte> out) const;
  // The same for boxes: the elements of each, row-major, one box behind the other.
  absl::Status read_boxes(std::string_view name, TensorKind kind, std::span<const Box> boxes,
                          std::span<std::byte> out) const;
  // The same of tensors that are stored as f32.
  absl::Status read_values(std::string_view name, TensorKind kind, std::span<const Box> boxes,
                           std::span<float> out) const override;

 private:
  // What a chunk has of a box.
  struct Wanted {
    CommonRuns runs;  // a: the chunk, b: the box.
    int64_t first;    // Element of the output at which the box begins.
    int64_t next_run = 0;
  };
  CheckpointReader(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}
  absl::Status open_file(const FileEntry& file);
  absl::Status check_chunk(const TensorEntry& tensor, const Chunk& chunk) const;
  absl::Status verify_file(const FileEntry& file) const;
  absl::StatusOr<const TensorEntry*> stored(std::string_view name, TensorKind kind) const;  // Ties followed.
  absl::Status check_boxes(const TensorEntry& tensor, std::span<const Box> boxes, uint64_t bytes) const;
  absl::Status read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::span<Wanted> wanted,
                          std::span<std::byte> out) const;
  static void scatter(std::span<const std::byte> piece, int64_t at, int64_t element, std::span<std::byte> out,
                      Wanted& wanted);

  FileSystem& files_;
  const std::string path_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> shards_;  // By file name.
};

// Opens the checkpoint and reads all of it: OK when every file is as its manifest says.
absl::Status verify_checkpoint(FileSystem& files, const std::string& directory);

enum class Depth : uint8_t {
  kManifest,  // As CheckpointReader::open.
  kContents,  // And CheckpointReader::verify.
};

struct Skipped {
  std::string path;
  absl::Status why;
};

struct Latest {
  std::unique_ptr<CheckpointReader> checkpoint;  // nullptr: there is none.
  std::vector<Skipped> skipped;                  // Newer ones that are not good; tell the user about each.
};

// The newest checkpoint of the run that is good to `depth`. LATEST is not looked at: it is a hint for people.
// An error only when the run's directory cannot be listed.
absl::StatusOr<Latest> find_latest(FileSystem& files, const std::string& run_dir, Depth depth);

}  // namespace telar::checkpoint
