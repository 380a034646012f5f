// Which tokens sample i of a run is made of.
//
// Sample i is a pure function of (token range, sequence length, seed, i): a run resumes from one integer, and the
// global batch of a step is the same in every parallel layout. There is no array anywhere, so 2^40 windows are as good
// as ten.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/token_source.h"

namespace telar::data {

struct TokenRange {
  uint64_t first = 0;
  uint64_t count = 0;
  bool operator==(const TokenRange&) const = default;
};

struct Split {
  TokenRange train;
  TokenRange eval;
};

// Holds out the last `eval_fraction` of the tokens, and never less than one window of sequence_length + 1.
// INVALID_ARGUMENT when the fraction is not in (0, 1) or one of the two parts cannot hold a window; the message says
// how many tokens there are and how many are needed.
absl::StatusOr<Split> hold_out_tail(uint64_t tokens, double eval_fraction, uint32_t sequence_length);

// A window is sequence_length + 1 tokens; windows follow each other at a stride of sequence_length, so each token but
// the first is a target once. Copyable; `source` must outlive it. Threads: as the source.
class Sampler {
 public:
  // For training, endless. Epoch e holds the samples [e * windows(), (e + 1) * windows()): all windows of the range,
  // in an order and from a starting offset that seed and e choose. The offset varies by up to sequence_length - 1
  // tokens, so that epochs cut the text at different places; for this at most one window an epoch is left out.
  static absl::StatusOr<Sampler> shuffled(const TokenSource& source, TokenRange range, uint32_t sequence_length,
                                          uint64_t seed);
  // For evaluation: the windows in the order of the text. Sample windows() and beyond do not exist.
  static absl::StatusOr<Sampler> in_order(const TokenSource& source, TokenRange range, uint32_t sequence_length);

  uint32_t sequence_length() const { return sequence_length_; }
  uint64_t windows() const { return windows_; }
  // Position in the source of the first token of sample i.
  uint64_t position(uint64_t sample) const;
  // inputs[t] and targets[t] = the token after inputs[t], each [sequence_length]. Errors of TokenSource::read;
  // OUT_OF_RANGE for a sample that does not exist.
  absl::Status read(uint64_t sample, std::span<int32_t> inputs, std::span<int32_t> targets) const;

 private:
  Sampler(const TokenSource& source, TokenRange range, uint32_t sequence_length);

  const TokenSource* source_;
  TokenRange range_;
  uint32_t sequence_length_;
  uint64_t windows_ = 0;
  uint64_t offsets_ = 1;  // Starting offsets that an epoch may take.
  uint64_t seed_ = 0;
  bool shuffle_ = false;
};

}  // namespace telar::data
