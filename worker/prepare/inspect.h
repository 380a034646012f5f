// Looking at data that is there: what it is, whether it is whole, what is in it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"
#include "worker/data/token_source.h"
#include "worker/prepare/open_tokenizer.h"

namespace telar::prepare {

struct DataRequest {
  std::vector<std::string> paths;  // Prepared datasets, folders of .bin files, or .bin files, all of one format.
  // For formats that do not tell: what the ids mean, and which one ends a document.
  v1::TokenizerSpec tokenizer;  // No kind: not known.
  int64_t vocabulary = 0;       // 0: the tokenizer's, or not known.
  int32_t end_of_document = -1;
};

struct OpenData {
  const char* format = "";  // "prepared", "megatron" or "llmc".
  std::unique_ptr<data::TokenSource> source;
  std::unique_ptr<data::Documents> documents;  // Null where nothing tells them apart. Of `source`.
  std::unique_ptr<Tokenizer> tokenizer;        // Null: not known.
  int64_t vocabulary = 0;                      // 0: not known.
  int32_t end_of_document = -1;                // -1: not known.
  uint64_t text_bytes = 0;                     // 0: not known.
  uint64_t files = 0;
  uint64_t file_bytes = 0;
};

// Format by what is there: dataset.json, then .idx beside .bin, then llm.c's magic. Errors name the file; a prepared
// dataset whose tokenizer cannot be opened is opened without.
absl::StatusOr<OpenData> open_data(const DataRequest& request);

// The same, but reads everything: sizes, sums, every id, every document's end. The first fault as the error, with
// file and offset.
absl::StatusOr<OpenData> check_data(const DataRequest& request);

struct DataStats {
  uint64_t tokens = 0;
  bool has_documents = false;  // Else nothing tells them apart, and what is about documents stays 0.
  uint64_t documents = 0;
  uint64_t shortest = 0, longest = 0, median = 0, p10 = 0, p90 = 0, p99 = 0;  // Tokens a document; nearest rank.
  std::map<uint64_t, uint64_t> lengths;  // Documents by the greatest power of two that is not above their tokens.
  uint64_t distinct = 0;                 // Ids that occur.
  std::vector<std::pair<int32_t, uint64_t>> frequent;  // Ids with their counts, most frequent first, then by id.
};

// Reads everything; `most_frequent` ids are told.
absl::StatusOr<DataStats> measure(const OpenData& data, size_t most_frequent);

// The document that holds token `position`, which must exist.
uint64_t document_at(const data::Documents& documents, uint64_t position);

}  // namespace telar::prepare
