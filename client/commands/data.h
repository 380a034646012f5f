// `telar data`: text into shards of token ids, and looking at them. On this machine; none asks the coordinator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/commands/context.h"
#include "telar/v1/spec.pb.h"
#include "worker/prepare/inspect.h"

namespace telar::client {

// As typed.
struct TokenizerOptions {
  std::string tokenizer;        // A file, or "byte"; empty: not given.
  std::string kind;             // hugging_face | tiktoken | sentencepiece; empty: by the file's name.
  std::string pattern;          // Of tiktoken files.
  std::string end_of_document;  // The token behind each document, as text.
};

struct DataPrepareOptions {
  std::vector<std::string> inputs;  // Paths, globs, "-".
  std::string out;
  TokenizerOptions tokenizer{.tokenizer = "byte"};
  std::string format = "prepared";  // prepared | megatron | llmc
  std::string input = "auto";       // auto | text | jsonl
  std::string field = "text";
  std::string documents = "file";        // file | paragraphs: how text is cut.
  std::optional<std::string> separator;  // A line that cuts text, instead.
  unsigned threads = 0;                  // 0: one a core.
  uint64_t shard_tokens = 0;             // 0: the default.
  std::string on_error = "stop";         // stop | skip
  uint64_t max_documents = 0;
};
// Progress on stderr, the result on stdout.
int data_prepare(Context& context, const DataPrepareOptions& options);

// What data is, where it does not tell itself.
struct DataOptions {
  std::vector<std::string> paths;
  TokenizerOptions tokenizer;
  int64_t vocabulary = 0;
  int32_t end_of_document = -1;  // As id.
};
// Reads everything. kDamaged with the first fault on stderr.
int data_check(Context& context, const DataOptions& options);

struct DataPeekOptions {
  DataOptions data;
  std::optional<uint64_t> document;  // From its first token on.
  std::optional<uint64_t> position;  // From this token on.
  uint64_t tokens = 256;
};
int data_peek(Context& context, const DataPeekOptions& options);

int data_stats(Context& context, const DataOptions& options);

// INVALID_ARGUMENT names the option.
absl::StatusOr<v1::TokenizerSpec> tokenizer_of(const TokenizerOptions& options);
absl::StatusOr<prepare::DataRequest> request_of(const DataOptions& options);

}  // namespace telar::client
