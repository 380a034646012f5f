// The safetensors file format: 8 bytes of header length, a JSON header, the tensors' bytes.
// Format: https://github.com/huggingface/safetensors and docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/dtype.h"
#include "worker/checkpoint/file_system.h"

namespace telar::checkpoint {

inline constexpr uint64_t kMostHeaderBytes = 100'000'000;

// Bits an element of a dtype of the format ("F32", "BF16", "F4", ...); 0 for one that we do not know.
int bits_of_dtype(std::string_view dtype);
std::string dtype_name(backend::DType dtype);  // "F32"

// Bytes that a tensor takes. INVALID_ARGUMENT, naming what is wrong but not the tensor: unknown dtype, negative extent,
// overflow, or elements below a byte that do not fill the last one.
absl::StatusOr<uint64_t> bytes_of(std::string_view dtype, std::span<const int64_t> shape);

struct TensorInfo {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;  // Row-major; [] is a scalar.
  uint64_t begin = 0;          // Bytes [begin, end) of the data section.
  uint64_t end = 0;
};

// Opened and checked in full, data bytes not read. Any number of threads may read.
class SafetensorsFile {
 public:
  // DATA_LOSS names file, tensor and offset of what breaks a rule of the format: lengths, JSON, duplicate keys, types,
  // unknown dtypes, sizes, holes, overlaps, bytes after the last tensor.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> open(FileSystem& files, const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // By offset.
  const TensorInfo* find(const std::string& name) const;               // nullptr: not there.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  uint64_t data_offset() const { return data_offset_; }  // Of the data section in the file.
  // out.size() bytes of the tensor, from `first_byte` of it on; OUT_OF_RANGE beyond its end.
  absl::Status read(const TensorInfo& tensor, uint64_t first_byte, std::span<std::byte> out) const;

 private:
  SafetensorsFile() = default;
  absl::Status parse(const std::string& header, uint64_t data_bytes);

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
  uint64_t data_offset_ = 0;
};

// Writes one file front to back: all tensors declared first, then their bytes in the declared order.
// Declare by element size, greatest first, to keep every tensor aligned.
class SafetensorsWriter {
 public:
  struct Finished {
    uint64_t bytes = 0;   // Of the file.
    uint32_t crc32c = 0;  // Of the file.
  };
  // begin and end of `tensors` are worked out here. INVALID_ARGUMENT names the tensor.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> create(FileSystem& files, const std::string& path,
                                                                   std::vector<TensorInfo> tensors,
                                                                   const std::map<std::string, std::string>& metadata);
  absl::Status append(std::span<const std::byte> bytes);
  // Syncs and closes. FAILED_PRECONDITION unless exactly the declared bytes were appended.
  absl::StatusOr<Finished> finish();

 private:
  SafetensorsWriter() = default;

  std::string path_;
  std::unique_ptr<WritableFile> file_;
  uint64_t left_ = 0;  // Declared bytes not yet appended.
  Finished written_;
};

}  // namespace telar::checkpoint
