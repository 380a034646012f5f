// What one side of a split has of a source.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/data/token_source.h"

namespace telar::data {

struct TokenRange {
  uint64_t first = 0;
  uint64_t count = 0;
  bool operator==(const TokenRange&) const = default;
};

// Ranges of a source's tokens, as if they stood one behind the other; positions here count from the first of them. A
// document that a range cuts is one of those that it begins or ends with, as far as it goes.
// Immutable; threads: as the source.
class Section {
 public:
  // `ranges` ascend, do not overlap, and lie within `source`, which outlives the section; empty ones are left out.
  // `documents` are those of the source, and outlive the section; null: not known.
  Section(const TokenSource& source, const Documents* documents, const std::vector<TokenRange>& ranges);

  uint64_t size() const { return size_; }
  // As TokenSource has them.
  absl::Status read(uint64_t first, std::span<int32_t> out) const;
  void will_need(uint64_t first, uint64_t count) const;
  // Where a token is in the source. position < size().
  uint64_t source_position(uint64_t position) const;

  bool has_documents() const { return documents_ != nullptr; }
  // Whole and cut ones; 0 without documents. Takes O(log documents), as the next two do.
  uint64_t document_count() const { return document_count_; }
  TokenRange document(uint64_t index) const;
  // Behind the last token of the document that the token at `position` is of.
  uint64_t document_end(uint64_t position) const;

 private:
  struct Piece {
    uint64_t first = 0;           // Here.
    TokenRange range;             // In the source.
    uint64_t first_document = 0;  // Here.
    uint64_t document = 0;        // The same one in the source.
  };
  const Piece& piece_of(uint64_t position) const;
  // The source's document that the source's token is of.
  uint64_t document_of(uint64_t source_position) const;

  const TokenSource* source_;
  const Documents* documents_;
  std::vector<Piece> pieces_;
  uint64_t size_ = 0;
  uint64_t document_count_ = 0;
};

}  // namespace telar::data
