// A long sequence of token ids, read at any place.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/index_cache.h"

namespace telar::data {

// Where documents end. Immutable; any thread; O(1) a call.
class Documents {
 public:
  virtual ~Documents() = default;
  virtual uint64_t count() const = 0;
  // Position behind document i's last token, its end-of-document token included; ascending; end(count() - 1) == size().
  virtual uint64_t end(uint64_t index) const = 0;
};

// Immutable after opening; read() may be called from several threads at once. Positions are 64 bits throughout.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // Tokens in all files together.
  virtual uint64_t size() const = 0;
  // Fills `out` with the tokens [first, first + out.size()). OUT_OF_RANGE beyond the end; DATA_LOSS for an id that is
  // not below the vocabulary given at opening, naming file, position in the file, id and vocabulary. Every id is
  // checked: one that came through is safe as a row of the embedding table.
  virtual absl::Status read(uint64_t first, std::span<int32_t> out) const = 0;
  // Looks at every token now, at the cost of reading all files once, so that a vocabulary that is too small is found
  // before the run instead of during it. DATA_LOSS as of read().
  virtual absl::Status check_vocab(int64_t limit) const = 0;
  // The documents, in order, for formats that tell or end each with the token `end_of_document` (-1: not known); reads
  // all tokens once where it has to and `cache` does not know. FAILED_PRECONDITION where there is no telling.
  absl::StatusOr<std::unique_ptr<Documents>> documents(int32_t end_of_document,
                                                       const IndexCache& cache = IndexCache()) const {
    return do_documents(end_of_document, cache);
  }
  // Paths of all that tokens and documents are read from; none for what is not from files.
  virtual std::vector<std::string> files() const { return {}; }
  // Asks the system to bring these tokens to memory, and does not wait for it. A hint: may do nothing.
  virtual void will_need(uint64_t /*first*/, uint64_t /*count*/) const {}

 private:
  virtual absl::StatusOr<std::unique_ptr<Documents>> do_documents(int32_t end_of_document,
                                                                  const IndexCache& cache) const = 0;
};

// Both take paths and globs. A path that exists is taken as it stands, else it is a glob, expanded in the order of
// the names' bytes. The files' tokens follow one another in that order. `vocab` is the model's vocabulary.
// Errors, all at opening, all naming the path: NOT_FOUND (no file, or no match), PERMISSION_DENIED, INVALID_ARGUMENT
// (empty list, empty file, no regular file, unknown magic or version, vocabulary below the byte tokenizer's),
// DATA_LOSS (a shard whose size is not what its header says, with both).

// Text under the byte tokenizer, mapped and tokenised as it is read: a file is a document and ends with
// tokenizer::kByteEndOfDocument, so n bytes are n + 1 tokens.
absl::StatusOr<std::unique_ptr<TokenSource>> open_text(const std::vector<std::string>& paths, int64_t vocab);

// llm.c token shards, mapped; both versions may be mixed. Layout: docs/formats/shards.md. Their documents end with
// end_of_document, or begin with it if that is the first token of all, as in the shards of llm.c's own scripts.
absl::StatusOr<std::unique_ptr<TokenSource>> open_llmc_bin(const std::vector<std::string>& paths, int64_t vocab);

// The files that `paths` stand for; what the two functions above begin with.
absl::StatusOr<std::vector<std::string>> expand_paths(const std::vector<std::string>& paths);

}  // namespace telar::data
