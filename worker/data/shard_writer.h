// Shards of token ids, written document by document and published whole.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace telar::data {

// What was published: NAME.bin, and NAME.idx where the format has one.
struct ShardFiles {
  std::string name;
  uint64_t documents = 0;
  uint64_t tokens = 0;
  uint64_t bin_bytes = 0;
  uint64_t idx_bytes = 0;   // 0: no index.
  uint32_t bin_crc32c = 0;  // Of formats with an index.
  uint32_t idx_crc32c = 0;
  bool operator==(const ShardFiles&) const = default;
};

// For one thread. Nothing is to be seen of a shard that is destroyed before it is published. Errors name the file.
class ShardWriter {
 public:
  virtual ~ShardWriter() = default;
  // One document with all of its tokens, none of them negative or too great for the shard's ids. OUT_OF_RANGE, and
  // nothing written, when the format's counts cannot hold it.
  virtual absl::Status append(std::span<const int32_t> document) = 0;
  virtual absl::StatusOr<ShardFiles> publish() = 0;
};

// Bytes of an id: 2 (below 65,536) or 4. Megatron's own choice: 2 for a vocabulary below 65,500.
inline int id_bytes_of(int64_t vocabulary) { return vocabulary < 65500 ? 2 : 4; }

// Megatron-LM's NAME.bin and NAME.idx, a document being one sequence. The index is published behind what it is of.
absl::StatusOr<std::unique_ptr<ShardWriter>> create_megatron_shard(const std::string& directory,
                                                                   const std::string& name, int id_bytes);

// llm.c's NAME.bin: version 1 for two bytes, 7 for four. Its count is 32 bits with a sign, so that is the most tokens
// it takes; a test may set less.
absl::StatusOr<std::unique_ptr<ShardWriter>> create_llmc_shard(const std::string& directory, const std::string& name,
                                                               int id_bytes, uint64_t most_tokens = INT32_MAX);

}  // namespace telar::data
