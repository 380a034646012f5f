// The samples of a run that has several sources.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/data/blend.h"
#include "worker/data/sampler.h"

namespace telar::data {

class Mixture : public Samples {
 public:
  // As many samplers, of one sequence length, as the blend has sources.
  Mixture(Blend blend, std::vector<Sampler> samplers) : blend_(std::move(blend)), samplers_(std::move(samplers)) {}

  uint32_t sequence_length() const override { return samplers_.front().sequence_length(); }
  absl::Status read(uint64_t sample, const Row& row) const override {
    const Blend::Place at = place(sample);
    return samplers_[at.source].read(at.index, row);
  }
  void will_need(uint64_t sample) const override {
    const Blend::Place at = place(sample);
    samplers_[at.source].will_need(at.index);
  }

  // The run had another blend before its sample `samples`, and each source has given as many of its own as `consumed`
  // says: it goes on behind them. Nothing before `samples` is to be asked for from then on.
  void begin_at(uint64_t samples, std::vector<uint64_t> consumed) {
    begin_ = samples;
    before_ = std::move(consumed);
  }

  const Blend& blend() const { return blend_; }
  const std::vector<Sampler>& samplers() const { return samplers_; }
  // Of the first `samples` samples of the run, how many are of each source.
  std::vector<uint64_t> consumed(uint64_t samples) const {
    std::vector<uint64_t> counts = blend_.counts(samples - begin_);
    for (size_t source = 0; source < before_.size(); ++source) counts[source] += before_[source];
    return counts;
  }
  // How often each source has been gone through by then.
  std::vector<double> epochs(uint64_t samples) const {
    std::vector<double> epochs;
    for (const uint64_t count : consumed(samples)) {
      epochs.push_back(static_cast<double>(count) / static_cast<double>(samplers_[epochs.size()].rows()));
    }
    return epochs;
  }

 private:
  Blend::Place place(uint64_t sample) const {
    Blend::Place at = blend_.place(sample - begin_);
    if (!before_.empty()) at.index += before_[at.source];
    return at;
  }

  Blend blend_;
  std::vector<Sampler> samplers_;
  uint64_t begin_ = 0;            // The run's first sample of this blend.
  std::vector<uint64_t> before_;  // What each source gave before it; empty: nothing.
};

}  // namespace telar::data
