#include "worker/data/section.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace telar::data {

Section::Section(const TokenSource& source, const Documents* documents, const std::vector<TokenRange>& ranges)
    : source_(&source), documents_(documents) {
  for (const TokenRange& range : ranges) {
    if (range.count == 0) continue;
    Piece piece{size_, range, document_count_, 0};
    if (documents_ != nullptr) {
      piece.document = document_of(range.first);
      document_count_ += document_of(range.first + range.count - 1) + 1 - piece.document;
    }
    size_ += range.count;
    pieces_.push_back(piece);
  }
}

const Section::Piece& Section::piece_of(uint64_t position) const {
  return *std::prev(std::upper_bound(pieces_.begin(), pieces_.end(), position,
                                     [](uint64_t at, const Piece& piece) { return at < piece.first; }));
}

uint64_t Section::document_of(uint64_t source_position) const {
  uint64_t low = 0, high = documents_->count() - 1;  // The last one ends behind every token.
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (documents_->end(middle) > source_position) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

absl::Status Section::read(uint64_t first, std::span<int32_t> out) const {
  if (first > size_ || out.size() > size_ - first) {
    return absl::OutOfRangeError(
        absl::StrCat("tokens [", first, ", ", first, " + ", out.size(), ") of a section that has ", size_));
  }
  while (!out.empty()) {
    const Piece& piece = piece_of(first);
    const uint64_t within = first - piece.first;
    const size_t count = std::min<uint64_t>(out.size(), piece.range.count - within);
    auto status = source_->read(piece.range.first + within, out.first(count));
    if (!status.ok()) return status;
    first += count;
    out = out.subspan(count);
  }
  return absl::OkStatus();
}

void Section::will_need(uint64_t first, uint64_t count) const {
  while (count > 0 && first < size_) {
    const Piece& piece = piece_of(first);
    const uint64_t within = first - piece.first, here = std::min(count, piece.range.count - within);
    source_->will_need(piece.range.first + within, here);
    first += here;
    count -= here;
  }
}

uint64_t Section::source_position(uint64_t position) const {
  const Piece& piece = piece_of(position);
  return piece.range.first + (position - piece.first);
}

TokenRange Section::document(uint64_t index) const {
  const Piece& piece = *std::prev(std::upper_bound(
      pieces_.begin(), pieces_.end(), index, [](uint64_t at, const Piece& one) { return at < one.first_document; }));
  const uint64_t in_source = piece.document + (index - piece.first_document);
  const uint64_t piece_end = piece.range.first + piece.range.count;
  const uint64_t begin = std::max(piece.range.first, in_source == 0 ? 0 : documents_->end(in_source - 1));
  const uint64_t end = std::min(piece_end, documents_->end(in_source));
  return {piece.first + (begin - piece.range.first), end - begin};
}

uint64_t Section::document_end(uint64_t position) const {
  const Piece& piece = piece_of(position);
  const uint64_t end = documents_->end(document_of(piece.range.first + (position - piece.first)));
  return piece.first + (std::min(end, piece.range.first + piece.range.count) - piece.range.first);
}

}  // namespace telar::data
