#include "worker/data/sampler.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/data/permutation.h"

namespace telar::data {
namespace {

// Purposes that split the seed into independent keys.
constexpr uint64_t kOrderKey = 1;
constexpr uint64_t kOffsetKey = 2;

uint64_t key_of(uint64_t seed, uint64_t epoch, uint64_t purpose) { return mix(mix(mix(seed) ^ epoch) ^ purpose); }

absl::Status check_range(const TokenSource& source, TokenRange range, uint32_t sequence_length) {
  if (sequence_length == 0) return absl::InvalidArgumentError("sequence_length 0: must be at least 1");
  if (range.first > source.size() || range.count > source.size() - range.first) {
    return absl::OutOfRangeError(absl::StrCat("token range [", range.first, ", ", range.first, " + ", range.count,
                                              ") of a source that has ", source.size()));
  }
  if (range.count <= sequence_length) {
    return absl::InvalidArgumentError(absl::StrCat("data has ", range.count, " tokens: sequence_length ",
                                                   sequence_length, " needs at least ", uint64_t{sequence_length} + 1));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Split> hold_out_tail(uint64_t tokens, double eval_fraction, uint32_t sequence_length) {
  if (!(eval_fraction > 0 && eval_fraction < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("eval_fraction ", eval_fraction, ": must be in (0, 1)"));
  }
  const uint64_t window = uint64_t{sequence_length} + 1;
  const auto wanted = static_cast<uint64_t>(std::floor(static_cast<double>(tokens) * eval_fraction));
  const uint64_t eval = std::max(window, wanted);
  if (tokens < eval || tokens - eval < window) {
    return absl::InvalidArgumentError(absl::StrCat("data has ", tokens, " tokens: with ", eval,
                                                   " held out (eval_fraction ", eval_fraction, ") sequence_length ",
                                                   sequence_length, " needs at least ", eval + window));
  }
  return Split{{0, tokens - eval}, {tokens - eval, eval}};
}

Sampler::Sampler(const TokenSource& source, TokenRange range, uint32_t sequence_length)
    : source_(&source), range_(range), sequence_length_(sequence_length) {}

absl::StatusOr<Sampler> Sampler::shuffled(const TokenSource& source, TokenRange range, uint32_t sequence_length,
                                          uint64_t seed) {
  if (auto status = check_range(source, range, sequence_length); !status.ok()) return status;
  Sampler sampler(source, range, sequence_length);
  const uint64_t length = sequence_length;
  // Every epoch has as many windows as fit behind the greatest offset, length - 1. A range too short for that keeps
  // its one window and what offsets are left.
  sampler.windows_ = std::max<uint64_t>(1, (range.count - length) / length);
  sampler.offsets_ = std::min(length, range.count - sampler.windows_ * length);
  sampler.seed_ = seed;
  sampler.shuffle_ = true;
  return sampler;
}

absl::StatusOr<Sampler> Sampler::in_order(const TokenSource& source, TokenRange range, uint32_t sequence_length) {
  if (auto status = check_range(source, range, sequence_length); !status.ok()) return status;
  Sampler sampler(source, range, sequence_length);
  sampler.windows_ = (range.count - 1) / sequence_length;
  return sampler;
}

uint64_t Sampler::position(uint64_t sample) const {
  if (!shuffle_) return range_.first + sample * sequence_length_;
  const uint64_t epoch = sample / windows_;
  const uint64_t window = Permutation(windows_, key_of(seed_, epoch, kOrderKey))(sample % windows_);
  const uint64_t offset = key_of(seed_, epoch, kOffsetKey) % offsets_;
  return range_.first + offset + window * sequence_length_;
}

absl::Status Sampler::read(uint64_t sample, std::span<int32_t> inputs, std::span<int32_t> targets) const {
  if (inputs.size() != sequence_length_ || targets.size() != sequence_length_) {
    return absl::InvalidArgumentError(absl::StrCat("sample buffers of ", inputs.size(), " and ", targets.size(),
                                                   " tokens: sequence_length is ", sequence_length_));
  }
  if (!shuffle_ && sample >= windows_) {
    return absl::OutOfRangeError(absl::StrCat("sample ", sample, " of an evaluation set that has ", windows_));
  }
  const uint64_t first = position(sample);
  if (auto status = source_->read(first, inputs); !status.ok()) return status;
  std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
  return source_->read(first + sequence_length_, targets.last(1));
}

}  // namespace telar::data
