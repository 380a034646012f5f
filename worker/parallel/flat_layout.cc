#include "worker/parallel/flat_layout.h"

#include <algorithm>
#include <numeric>

namespace telar::parallel {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Where a group stands in its bucket: what decays first, then what is partial, so that such ranges run together.
int rank_in_bucket(const ParameterGroup& group) {
  if (group.decays) return 0;
  return group.parts.front().partial == Partial::kTensor ? 1 : 2;
}

Range intersect(const Range& a, const Range& b) {
  const int64_t first = std::max(a.first, b.first);
  return {first, std::max<int64_t>(0, std::min(a.end(), b.end()) - first)};
}

}  // namespace

FlatLayout::FlatLayout(std::vector<ParameterGroup> groups, int64_t bucket_elements, Shards shards,
                       const std::vector<int>& stage_of_unit)
    : groups_(std::move(groups)), shards_(shards), places_(groups_.size()) {
  // Highest unit first; a tied table has a bucket of its own. Both sorts keep the given order otherwise.
  std::vector<size_t> order(groups_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return groups_[a].unit > groups_[b].unit; });
  const auto stage = [&](int unit) { return stage_of_unit.empty() ? 0 : stage_of_unit[static_cast<size_t>(unit)]; };
  std::vector<size_t> members;
  int64_t size = 0;
  const auto close = [&] {
    if (!members.empty()) fill_bucket(members);
    members.clear();
    size = 0;
  };
  for (size_t begin = 0; begin < order.size();) {
    const int unit = groups_[order[begin]].unit;
    if (!members.empty() && (size >= bucket_elements || stage(groups_[members.front()].unit) != stage(unit))) close();
    size_t end = begin;
    for (; end < order.size() && groups_[order[end]].unit == unit; ++end) {
      if (groups_[order[end]].tied) {
        fill_bucket({order[end]});
        continue;
      }
      members.push_back(order[end]);
      for (const Parameter& part : groups_[order[end]].parts) size += part.shape.elements();
    }
    begin = end;
  }
  close();
  for (size_t i = 0; i < groups_.size(); ++i) index_[groups_[i].name] = i;
}

void FlatLayout::fill_bucket(const std::vector<size_t>& members) {
  std::vector<size_t> order = members;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rank_in_bucket(groups_[a]) < rank_in_bucket(groups_[b]); });
  Bucket bucket;
  bucket.tied = groups_[members.front()].tied;
  for (const size_t member : members) {
    if (bucket.units.empty() || bucket.units.back() != groups_[member].unit)
      bucket.units.push_back(groups_[member].unit);
  }
  for (const size_t member : order) {
    const ParameterGroup& group = groups_[member];
    places_[member] = {static_cast<int>(buckets_.size()), bucket.elements};
    int64_t first = bucket.elements;
    for (const Parameter& part : group.parts) {
      const Range range{first, part.local().elements()};
      first = range.end();
      if (part.partial == Partial::kNone) continue;
      // The gap of an alignment between two groups is zero: adding it up does no harm.
      if (!bucket.partial.empty() && bucket.partial.back().over == part.partial &&
          round_up(bucket.partial.back().range.end(), kAlignment) >= range.first) {
        bucket.partial.back().range.count = range.end() - bucket.partial.back().range.first;
      } else {
        bucket.partial.push_back({part.partial, range});
      }
    }
    bucket.elements += round_up(group.shape.elements(), kAlignment);
    if (group.decays) bucket.decayed = bucket.elements;
  }
  bucket.elements = round_up(bucket.elements, kAlignment * shards_.count);
  buckets_.push_back(std::move(bucket));
}

Range FlatLayout::shard(size_t bucket) const {
  const int64_t count = buckets_[bucket].elements / shards_.count;
  return {count * shards_.index, count};
}

Range FlatLayout::part_range(size_t group, size_t part) const {
  int64_t first = places_[group].first;
  for (size_t i = 0; i < part; ++i) first += groups_[group].parts[i].local().elements();
  return {first, groups_[group].parts[part].local().elements()};
}

std::vector<Range> FlatLayout::counted(size_t bucket) const {
  struct Part {
    Range range;
    bool primary;
  };
  std::vector<Part> parts;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (places_[g].bucket != static_cast<int>(bucket)) continue;
    for (size_t p = 0; p < groups_[g].parts.size(); ++p)
      parts.push_back({part_range(g, p), groups_[g].parts[p].primary});
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.range.first < b.range.first; });
  std::vector<Range> runs;
  bool open = false;
  for (const Part& part : parts) {
    if (part.primary && open) {
      runs.back().count = part.range.end() - runs.back().first;
    } else if (part.primary) {
      runs.push_back(part.range);
    }
    open = part.primary;
  }
  std::vector<Range> found;
  for (const Range& run : runs) {
    if (const Range own = intersect(run, shard(bucket)); own.count > 0) found.push_back(own);
  }
  return found;
}

std::vector<Piece> FlatLayout::pieces(bool whole) const {
  std::vector<Piece> found;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto bucket = static_cast<size_t>(places_[g].bucket);
    for (size_t p = 0; p < groups_[g].parts.size(); ++p) {
      const Range part = part_range(g, p);
      const Range held = intersect(part, whole ? this->whole(bucket) : shard(bucket));
      if (held.count == 0) continue;
      found.push_back({g, p, {held.first - part.first, held.count}, places_[g].bucket, held.first});
    }
  }
  return found;
}

}  // namespace telar::parallel
