// Text into shards of token ids: what `telar data prepare` does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"
#include "worker/prepare/document_reader.h"

namespace telar::prepare {

enum class Format : uint8_t { kPrepared, kMegatron, kLlmc };
enum class InputKind : uint8_t { kByName, kText, kJsonl };  // By name: .jsonl and .ndjson, packed or not, else text.

inline constexpr const char* kSkippedFile = "skipped.txt";
inline constexpr uint64_t kShardTokens = 100'000'000;

struct Progress {
  uint64_t read_bytes = 0;   // Of the inputs as they are on the disk, what an earlier run read among them.
  uint64_t total_bytes = 0;  // Of all inputs; 0: not known.
  uint64_t documents = 0;    // These include what an earlier run had done.
  uint64_t tokens = 0;
  uint64_t skipped = 0;
  uint64_t shards = 0;  // Published.
};

struct Options {
  std::vector<std::string> inputs;  // Paths, globs, or "-".
  std::string out;                  // Directory; made if there is none, and otherwise empty or of a run to go on with.
  Format format = Format::kPrepared;
  v1::TokenizerSpec tokenizer;
  InputKind kind = InputKind::kByName;
  std::string field = "text";  // Of JSONL.
  TextSplit split = TextSplit::kFile;
  std::string separator;                 // With kSeparator.
  unsigned threads = 1;                  // That tokenize.
  uint64_t shard_tokens = kShardTokens;  // A shard ends before the document that would take it beyond.
  bool skip_faults = false;              // A faulty document is left out and listed, instead of ending the run.
  uint64_t max_documents = 0;            // 0: all.
  // Called on the caller's thread after every few documents, and once at the end.
  std::function<void(const Progress&)> progress;
};

struct Summary {
  uint64_t documents = 0;
  uint64_t tokens = 0;
  uint64_t text_bytes = 0;
  uint64_t empty = 0;    // Left out: no text in them.
  uint64_t skipped = 0;  // Left out: faulty; kSkippedFile in `out` has a line for each.
  uint64_t shards = 0;
  uint64_t resumed_documents = 0;  // Of `documents`, those of an earlier run.
  int32_t vocabulary = 0;
};

// The same options and inputs give the same bytes, whatever the threads and however often the run was killed and begun
// again: it goes on behind the last shard that was published. Memory does not grow with the input.
// Errors: INVALID_ARGUMENT (an option; no document at all), NOT_FOUND, ALREADY_EXISTS (`out` is finished),
// FAILED_PRECONDITION (`out` holds something else, is of another request, or is in use), DATA_LOSS for a faulty
// document ("file:line:column: what") or a damaged file.
absl::StatusOr<Summary> prepare(const Options& options);

}  // namespace telar::prepare
