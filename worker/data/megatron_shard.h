// One NAME.bin of Megatron-LM with its NAME.idx, mapped.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/id_type.h"
#include "worker/data/mapped_file.h"

namespace telar::data {

// Immutable; every method may be called from several threads at once.
class MegatronShard {
 public:
  // `path` names the .bin. Looks at all of the index, so that the two are known to agree: lengths not negative,
  // sequences one behind the other from byte 0 to the end of the .bin without gap, document bounds ascending from 0 to
  // the number of sequences. Errors name file, offset, value and rule: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT
  // (no index of Megatron, ids in floating point, no tokens), DATA_LOSS (cut short, or the two disagree).
  static absl::StatusOr<MegatronShard> open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::string& index_path() const { return index_path_; }
  std::span<const std::byte> bytes() const { return bin_.bytes(); }
  std::span<const std::byte> index_bytes() const { return idx_.bytes(); }

  uint64_t tokens() const { return bin_.bytes().size() / size_of(type_); }
  uint64_t documents() const { return bounds_ - 1; }
  // Position behind document i's last token, by the index. Documents may be empty.
  uint64_t document_end(uint64_t document) const;
  // The tokens [first, first + out.size()), which must exist. DATA_LOSS for an id outside [0, vocab), naming file, byte
  // offset, token, id and vocabulary.
  absl::Status read(uint64_t first, std::span<int32_t> out, int64_t vocab) const;
  // Starts to bring these tokens, which must exist, to memory, without waiting.
  void will_need(uint64_t first, uint64_t count) const {
    bin_.will_need(first * size_of(type_), count * size_of(type_));
  }

 private:
  MegatronShard(std::string path, std::string index_path, MappedFile bin, MappedFile idx);
  absl::Status read_header();
  absl::Status check_sequences() const;
  absl::Status check_bounds() const;
  int32_t length(uint64_t sequence) const;
  int64_t pointer(uint64_t sequence) const;
  int64_t bound(uint64_t index) const;
  absl::Status broken_index(const std::string& what) const;

  std::string path_, index_path_;
  MappedFile bin_, idx_;
  IdType type_ = IdType::kU16;
  uint64_t sequences_ = 0;
  uint64_t bounds_ = 0;       // Documents + 1.
  uint64_t pointers_at_ = 0;  // Offsets of the arrays in the index.
  uint64_t documents_at_ = 0;
};

}  // namespace telar::data
