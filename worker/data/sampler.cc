#include "worker/data/sampler.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/permutation.h"

namespace telar::data {
namespace {

// Purposes that split the seed into independent keys.
constexpr uint64_t kOrderKey = 1;
constexpr uint64_t kOffsetKey = 2;

uint64_t key_of(uint64_t seed, uint64_t epoch, uint64_t purpose) { return mix(mix(mix(seed) ^ epoch) ^ purpose); }

}  // namespace

Sampler::Sampler(Section section, const RowOptions& options) : section_(std::move(section)), options_(options) {}

absl::StatusOr<Sampler> Sampler::create(Section section, const RowOptions& options) {
  const bool by_document = options.kind == RowOptions::Kind::kDocument;
  if (options.sequence_length == 0) return absl::InvalidArgumentError("sequence_length 0: must be at least 1");
  if ((by_document || options.mask_document_starts) && !section.has_documents()) {
    return absl::InvalidArgumentError(
        absl::StrCat(by_document ? "a document a row" : "mask_document_starts", ": documents are not known"));
  }
  Sampler sampler(std::move(section), options);
  if (by_document) {
    sampler.count_rows();
    if (sampler.rows_ > 0) return sampler;
    return absl::InvalidArgumentError(absl::StrCat("data has ", sampler.section_.document_count(),
                                                   " documents: none has two tokens, which a row needs at least"));
  }
  if (sampler.section_.size() > options.sequence_length) return sampler;
  return absl::InvalidArgumentError(absl::StrCat("data has ", sampler.section_.size(), " tokens: sequence_length ",
                                                 options.sequence_length, " needs at least ",
                                                 uint64_t{options.sequence_length} + 1));
}

absl::StatusOr<Sampler> Sampler::shuffled(Section section, const RowOptions& options, uint64_t seed) {
  auto sampler = create(std::move(section), options);
  if (!sampler.ok()) return sampler;
  sampler->seed_ = seed;
  sampler->shuffle_ = true;
  if (options.kind == RowOptions::Kind::kDocument) return sampler;
  // Every epoch has as many windows as fit behind the greatest offset, length - 1. A range too short for that keeps
  // its one window and what offsets are left.
  const uint64_t length = options.sequence_length, count = sampler->section_.size();
  sampler->rows_ = std::max<uint64_t>(1, (count - length) / length);
  sampler->offsets_ = std::min(length, count - sampler->rows_ * length);
  return sampler;
}

absl::StatusOr<Sampler> Sampler::in_order(Section section, const RowOptions& options) {
  auto sampler = create(std::move(section), options);
  if (!sampler.ok() || options.kind == RowOptions::Kind::kDocument) return sampler;
  sampler->rows_ = (sampler->section_.size() - 1) / options.sequence_length;
  return sampler;
}

uint64_t Sampler::rows_of(TokenRange document) const {
  if (document.count < 2) return 0;
  return (document.count - 2) / options_.sequence_length + 1;
}

void Sampler::count_rows() {
  for (uint64_t index = 0; index < section_.document_count(); ++index) {
    if (index % kDocumentGroup == 0) rows_before_.push_back(rows_);
    rows_ += rows_of(section_.document(index));
  }
}

TokenRange Sampler::document_row(uint64_t row) const {
  const auto group = std::prev(std::upper_bound(rows_before_.begin(), rows_before_.end(), row));
  row -= *group;
  for (auto index = static_cast<uint64_t>(group - rows_before_.begin()) * kDocumentGroup;; ++index) {
    const TokenRange document = section_.document(index);
    const uint64_t rows = rows_of(document);
    if (row < rows) {
      const uint64_t first = row * options_.sequence_length;
      return {document.first + first, std::min<uint64_t>(document.count - first, options_.sequence_length + 1)};
    }
    row -= rows;
  }
}

TokenRange Sampler::tokens_of(uint64_t sample) const {
  const uint64_t epoch = sample / rows_;
  uint64_t row = sample, offset = 0;
  if (shuffle_) {
    row = Permutation(rows_, key_of(seed_, epoch, kOrderKey))(sample % rows_);
    offset = key_of(seed_, epoch, kOffsetKey) % offsets_;
  }
  if (options_.kind == RowOptions::Kind::kDocument) return document_row(row);
  return {offset + row * options_.sequence_length, uint64_t{options_.sequence_length} + 1};
}

// Where documents start among the tokens, which are all of one where a row is.
void Sampler::mark_documents(TokenRange tokens, const Row& row) const {
  std::fill(row.starts.begin(), row.starts.end(), 0);
  if (options_.kind == RowOptions::Kind::kDocument) {
    const size_t padding = std::min<size_t>(tokens.count - 1, row.starts.size());
    std::fill(row.starts.begin() + static_cast<std::ptrdiff_t>(padding), row.starts.end(),
              static_cast<int32_t>(padding));
    return;
  }
  if (row.starts.empty() && !options_.mask_document_starts) return;
  const uint64_t last = tokens.count - 1;  // Only a target.
  for (uint64_t start = section_.document_end(tokens.first) - tokens.first; start <= last;
       start = section_.document_end(tokens.first + start) - tokens.first) {
    if (options_.mask_document_starts) row.targets[start - 1] = -1;
    if (start == last) return;
    if (!row.starts.empty()) {
      std::fill(row.starts.begin() + static_cast<std::ptrdiff_t>(start), row.starts.end(), static_cast<int32_t>(start));
    }
  }
}

absl::Status Sampler::read(uint64_t sample, const Row& row) const {
  const size_t length = options_.sequence_length;
  if (row.inputs.size() != length || row.targets.size() != length ||
      (!row.starts.empty() && row.starts.size() != length)) {
    return absl::InvalidArgumentError(absl::StrCat("sample buffers of ", row.inputs.size(), ", ", row.targets.size(),
                                                   " and ", row.starts.size(), " tokens: sequence_length is ", length));
  }
  if (!row.starts.empty() && !section_.has_documents()) {
    return absl::InvalidArgumentError("starts of documents are asked for, but documents are not known");
  }
  if (!shuffle_ && sample >= rows_) {
    return absl::OutOfRangeError(absl::StrCat("sample ", sample, " of an evaluation set that has ", rows_));
  }
  const TokenRange tokens = tokens_of(sample);
  const size_t targets = tokens.count - 1;
  if (auto status = section_.read(tokens.first, row.inputs.first(targets)); !status.ok()) return status;
  std::copy_n(row.inputs.begin() + 1, targets - 1, row.targets.begin());
  if (auto status = section_.read(tokens.first + targets, row.targets.subspan(targets - 1, 1)); !status.ok()) {
    return status;
  }
  std::fill(row.inputs.begin() + static_cast<std::ptrdiff_t>(targets), row.inputs.end(), 0);
  std::fill(row.targets.begin() + static_cast<std::ptrdiff_t>(targets), row.targets.end(), -1);
  mark_documents(tokens, row);
  return absl::OkStatus();
}

void Sampler::will_need(uint64_t sample) const {
  if (!shuffle_ && sample >= rows_) return;
  const TokenRange tokens = tokens_of(sample);
  section_.will_need(tokens.first, tokens.count);
}

}  // namespace telar::data
