// Reading, tokenizing and putting back into order, on threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "worker/prepare/document_reader.h"
#include "worker/prepare/extract.h"
#include "worker/prepare/open_tokenizer.h"

namespace telar::prepare {

// What became of one document.
struct Item {
  size_t begin = 0, size = 0;  // Its ids in the batch, the end-of-document id included; none: without text, or a fault.
  uint64_t text_bytes = 0;
  Position after;
  std::optional<Fault> fault;
};

// What became of one chunk.
struct Batch {
  uint64_t file = 0;
  std::vector<int32_t> ids;
  std::vector<Item> items;
  uint64_t read_bytes = 0;
  absl::Status status;  // As of Chunk.
};

// One thread reads, `threads` threads tokenize, the caller takes: batches come in the order of the input whatever the
// number of threads. What is under way is bounded in count and bytes, so memory does not grow with the input.
class Pipeline {
 public:
  // `reader`, `tokenizer` and `inputs` must outlive it. JSONL takes the text from `field`.
  Pipeline(DocumentReader& reader, const std::vector<Input>& inputs, const Tokenizer& tokenizer, std::string field,
           unsigned threads);
  // Ends the threads; what they have not done stays undone.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // The next batch; nothing when all were given.
  std::optional<Batch> next();

 private:
  struct Numbered {
    uint64_t number;
    Chunk chunk;
  };
  void read();
  void tokenize();
  Batch batch_of(const Chunk& chunk) const;

  DocumentReader& reader_;
  const std::vector<Input>& inputs_;
  const Tokenizer& tokenizer_;
  const std::string field_;
  const uint64_t most_;  // Chunks under way: read, and not yet taken.

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Numbered> waiting_;
  std::map<uint64_t, std::pair<Batch, size_t>> done_;  // By number, with the bytes that the chunk had.
  uint64_t begun_ = 0;                                 // Chunks read.
  uint64_t taken_ = 0;                                 // Batches given out.
  size_t bytes_ = 0;                                   // Of the chunks under way.
  bool all_read_ = false;
  bool stop_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace telar::prepare
