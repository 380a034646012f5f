#include "worker/train/blend_position.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "worker/train/failure.h"

namespace telar::train {
namespace {

using Counts = std::map<std::string, uint64_t>;

// Of each source of the run, in its order.
std::vector<uint64_t> in_order(const Counts& counts, const Dataset& set) {
  std::vector<uint64_t> ordered;
  for (const v1::SourceReport& source : set.sources) {
    const auto found = set.named ? counts.find(source.name()) : counts.end();
    ordered.push_back(found == counts.end() ? 0 : found->second);
  }
  return ordered;
}

uint64_t sum_of(const Counts& counts) {
  uint64_t sum = 0;
  for (const auto& [name, count] : counts) sum += count;
  return sum;
}

bool has(const Dataset& set, const std::string& name) {
  for (const v1::SourceReport& source : set.sources) {
    if (set.named && source.name() == name) return true;
  }
  return false;
}

// All of the run's samples came from the sources that it has now, by their weights.
bool follows(const Position& position, const Dataset& set) {
  const Counts before = position.blend_start ? position.blend_start->consumed : Counts();
  if (!set.named) return position.consumed_sources == before;
  for (const auto& [name, count] : position.consumed_sources) {
    const auto known = before.find(name);
    if (!has(set, name) && (known == before.end() || known->second != count)) return false;
  }
  return set.train->consumed(position.consumed_samples) == in_order(position.consumed_sources, set);
}

std::map<std::string, checkpoint::SourceExtent> extents_of(const Dataset& set) {
  std::map<std::string, checkpoint::SourceExtent> extents;
  for (size_t i = 0; i < set.sources.size(); ++i) {
    const data::Sampler& rows = set.train->samplers()[i];
    extents[set.sources[i].name()] = {rows.rows(), rows.sequence_length(), set.sources[i].train_tokens()};
  }
  return extents;
}

// Of sources that the checkpoint knows by name.
std::vector<std::string> other_extents(const Position& position, const Dataset& set) {
  std::vector<std::string> lines;
  const auto told = [](const checkpoint::SourceExtent& extent) {
    return absl::StrCat(extent.rows, " rows of ", extent.sequence_length, " from ", extent.train_tokens, " tokens");
  };
  for (const auto& [name, extent] : extents_of(set)) {
    const auto before = position.sources.find(name);
    if (before == position.sources.end() || before->second == extent) continue;
    lines.push_back(absl::StrCat(name, " holds ", told(extent), ", and held ", told(before->second),
                                 " when the checkpoint was made: its samples come in another order from here on, and "
                                 "this epoch may repeat some and leave others out"));
  }
  return lines;
}

std::vector<std::string> changes(const Counts& consumed, const Dataset& set) {
  std::vector<std::string> lines;
  if (!set.named) lines.emplace_back("none any more; what data.train names begins at its first sample");
  for (const v1::SourceReport& source : set.sources) {
    if (!set.named) break;
    const auto known = consumed.find(source.name());
    const std::string share =
        absl::StrCat(source.name(), " has ", 100 * source.share(), " % of the samples from here on");
    lines.push_back(known == consumed.end()
                        ? absl::StrCat(share, ", is new and begins at its first")
                        : absl::StrCat(share, ", and goes on behind ", known->second, " of its own"));
  }
  for (const auto& [name, count] : consumed) {
    if (!has(set, name))
      lines.push_back(absl::StrCat(name, " is left out from here on, behind ", count, " of its own"));
  }
  return lines;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> BlendPosition::resume(const Position& position, const v1::JobSpec& spec,
                                                               Dataset& set) {
  const uint64_t samples = position.consumed_samples;
  start_ = position.blend_start;
  if (sum_of(position.consumed_sources) > samples || (start_ && start_->samples > samples)) {
    return with_class(v1::STORAGE,
                      absl::DataLossError(absl::StrCat(
                          "it has consumed ", samples, " samples, but its sources ", sum_of(position.consumed_sources),
                          " of them, and its blend began behind ", start_ ? start_->samples : 0)));
  }
  std::vector<std::string> lines = other_extents(position, set);
  if (start_) set.train->begin_at(start_->samples, in_order(start_->consumed, set));
  if (!follows(position, set)) {
    std::ranges::move(changes(position.consumed_sources, set), std::back_inserter(lines));
    start_ = checkpoint::BlendStart{samples, position.consumed_sources};
    set.train->begin_at(samples, in_order(start_->consumed, set));
  }
  const std::vector<double> epochs =
      set.train->epochs(std::max(samples, spec.schedule().steps() * spec.batch().global()));
  for (size_t i = 0; i < epochs.size(); ++i) set.sources[i].set_epochs(epochs[i]);
  return lines;
}

void BlendPosition::note(const Dataset& set, Position& position) const {
  position.blend_start = start_;
  position.sources = extents_of(set);
  if (start_) position.consumed_sources = start_->consumed;
  if (!set.named) return;
  const std::vector<uint64_t> consumed = set.train->consumed(position.consumed_samples);
  for (size_t i = 0; i < consumed.size(); ++i) position.consumed_sources[set.sources[i].name()] = consumed[i];
}

}  // namespace telar::train
