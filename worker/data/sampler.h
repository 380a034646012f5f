// Which tokens a row of a step is made of.
//
// Sample i is a pure function of (tokens, row options, seed, i): a run resumes from one integer, and the global batch
// of a step is the same in every parallel layout. No array grows with the run, so 2^40 rows are as good as ten.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/section.h"

namespace telar::data {

// Where a sample goes; each sequence_length long.
struct Row {
  std::span<int32_t> inputs;
  std::span<int32_t> targets;  // The token behind each of inputs; -1: not counted.
  // Of each of inputs, the place in the row at which its document starts, 0 if it started before the row: so position
  // t is number t - starts[t] of its document here. Never falls along the row. May be empty: not asked for.
  std::span<int32_t> starts;
};

// Samples by their number. Immutable; threads: any.
class Samples {
 public:
  virtual ~Samples() = default;
  virtual uint32_t sequence_length() const = 0;
  // Errors of TokenSource::read; OUT_OF_RANGE for a sample that does not exist; INVALID_ARGUMENT for a wrong size.
  virtual absl::Status read(uint64_t sample, const Row& row) const = 0;
  // A hint that the sample will be read soon.
  virtual void will_need(uint64_t sample) const = 0;
};

struct RowOptions {
  enum class Kind : uint8_t {
    kPacked,    // Windows of sequence_length + 1 tokens at a stride of sequence_length, whatever they hold.
    kDocument,  // One document, or the part of a longer one; then padding. Needs documents.
  };
  uint32_t sequence_length = 0;
  Kind kind = Kind::kPacked;
  bool mask_document_starts = false;  // The first token of a document is no target. Needs documents.
};

// The rows of one section. Copyable; the section's source and documents must outlive it.
//
// Packed, each token but the first is a target once. A document of n tokens is cut into ceil((n - 1) / sequence_length)
// rows, each beginning with the last token of the one before, so that each token but the first is a target once, too; a
// document of one token gives none. Padding is id 0, has no target, and starts a document of its own.
class Sampler : public Samples {
 public:
  // For training, endless. Epoch e holds the samples [e * rows(), (e + 1) * rows()): all rows of the section, in an
  // order that seed and e choose; packed, from a starting offset that they choose, too. The offset varies by up to
  // sequence_length - 1 tokens, so that epochs cut the text at different places; for this at most one window an epoch
  // is left out.
  // INVALID_ARGUMENT: too few tokens for a row, or documents that the options need and the section does not have.
  static absl::StatusOr<Sampler> shuffled(Section section, const RowOptions& options, uint64_t seed);
  // For evaluation: the rows in the order of the text. Sample rows() and beyond do not exist.
  static absl::StatusOr<Sampler> in_order(Section section, const RowOptions& options);

  uint32_t sequence_length() const override { return options_.sequence_length; }
  const Section& section() const { return section_; }
  uint64_t rows() const { return rows_; }
  // The section's tokens that sample i holds; packed, sequence_length + 1 of them, else up to that and at least two.
  TokenRange tokens_of(uint64_t sample) const;
  absl::Status read(uint64_t sample, const Row& row) const override;
  void will_need(uint64_t sample) const override;

 private:
  Sampler(Section section, const RowOptions& options);
  static absl::StatusOr<Sampler> create(Section section, const RowOptions& options);
  void count_rows();
  uint64_t rows_of(TokenRange document) const;
  TokenRange document_row(uint64_t row) const;
  void mark_documents(TokenRange tokens, const Row& row) const;

  static constexpr uint64_t kDocumentGroup = 64;

  Section section_;
  RowOptions options_;
  uint64_t rows_ = 0;
  uint64_t offsets_ = 1;  // Starting offsets that an epoch may take.
  uint64_t seed_ = 0;
  bool shuffle_ = false;
  std::vector<uint64_t> rows_before_;  // Every kDocumentGroup-th document; of Kind::kDocument.
};

}  // namespace telar::data
