// Prepared datasets: directories that tell of themselves. The page is docs/formats/dataset.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"
#include "worker/data/megatron_shard.h"
#include "worker/data/shard_writer.h"
#include "worker/data/token_source.h"

namespace telar::data {

inline constexpr const char* kDatasetFile = "dataset.json";
inline constexpr uint64_t kDatasetVersion = 1;

// What turned text into ids, and turns them back.
struct TokenizerRecord {
  v1::TokenizerSpec spec;  // `path` is the name of the tokenizer's file inside the directory; empty: it has none.
  std::string hash;        // tokenizer_hash() of it.
  int32_t vocabulary = 0;
  int32_t end_of_document = 0;  // Behind each document.
};

struct PreparedDataset {
  TokenizerRecord tokenizer;
  uint64_t documents = 0;
  uint64_t tokens = 0;
  uint64_t text_bytes = 0;  // Of the documents as text, in UTF-8.
  std::vector<ShardFiles> shards;
};

// "byte", or "<kind>:<SHA-256>" of the file's bytes and of the options that change ids. Errors of reading the file.
absl::StatusOr<std::string> tokenizer_hash(const v1::TokenizerSpec& spec);

std::string dataset_text(const PreparedDataset& dataset);
// Errors name `directory`/dataset.json: NOT_FOUND, INVALID_ARGUMENT (a later version, not JSON, a field of a wrong
// type, sums that do not add up).
absl::StatusOr<PreparedDataset> read_dataset(const std::string& directory);
// Of the text of the file at `path`.
absl::StatusOr<PreparedDataset> parse_dataset(std::string_view text, const std::string& path);
// The dataset's tokenizer with the path of its file.
v1::TokenizerSpec tokenizer_spec(const std::string& directory, const TokenizerRecord& record);

// The shards, sizes and counts as dataset.json has them; DATA_LOSS names file, value and what it should be.
absl::StatusOr<std::vector<MegatronShard>> open_shards(const std::string& directory, const PreparedDataset& dataset);

// A directory whose dataset.json was read.
struct PreparedDirectory {
  std::string path;
  PreparedDataset dataset;
};
// Those of paths and globs, in order, each read once. INVALID_ARGUMENT when two of them differ in their tokenizers,
// with both hashes.
absl::StatusOr<std::vector<PreparedDirectory>> read_prepared(const std::vector<std::string>& paths);

// All take what read_prepared() gave, at least one directory.
//
// INVALID_ARGUMENT when `vocab` is below that of the tokenizer, with both numbers.
absl::StatusOr<std::unique_ptr<TokenSource>> open_prepared(const std::vector<PreparedDirectory>& directories,
                                                           int64_t vocab);
// What the directories' tokenizer is, with the path of its file. DATA_LOSS when that is not the one of the hash.
absl::StatusOr<v1::TokenizerSpec> prepared_tokenizer(const std::vector<PreparedDirectory>& directories);
// INVALID_ARGUMENT, with both hashes, when a job names another tokenizer than these directories were made with. A spec
// of no kind or of kind NONE names none.
absl::Status check_tokenizer(const std::vector<PreparedDirectory>& directories, const v1::TokenizerSpec& spec);

}  // namespace telar::data
