// Where every parameter of a rank lives: flat buckets of whole units (a transformer block, the embedding, the head).
//
// Gradients of a bucket are reduced by one collective as soon as its last unit's backward is done, and the optimizer
// walks a bucket as two flat ranges: what decays comes first, what does not after it. Parameters that one product uses
// together (query, key and value; gate and up) are stored back to back, so the packed matrix is a view, and each
// logical tensor, or the slice of it that this rank holds, is a row range of it. A bucket is padded so that it cuts
// into equal shards, one for each rank of a shard group.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "worker/parallel/parameter.h"

namespace telar::parallel {

struct Range {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
  bool operator==(const Range&) const = default;
};

struct GroupPlace {
  int bucket = 0;
  int64_t first = 0;  // Element of the bucket where the group starts; a multiple of kAlignment.
};

// Gradients of which this rank has one summand, others of the group `over` the rest.
struct PartialRange {
  Partial over = Partial::kNone;
  Range range;
};

struct Bucket {
  std::vector<int> units;  // Descending. All but the first are whole; a unit's own buckets follow each other.
  bool tied = false;       // The embedding table where first and last stage are on different ranks: alone.
  int64_t decayed = 0;     // Elements [0, decayed) decay.
  int64_t elements = 0;    // A multiple of kAlignment * shards.
  std::vector<PartialRange> partial;
};

// Elements of one parameter's slice that lie in a range of a bucket.
struct Piece {
  size_t group = 0, part = 0;
  Range slice;     // Of the flattened slice.
  int bucket = 0;  // Where they are.
  int64_t first = 0;
};

// Of a bucket's shards, the one that this rank has.
struct Shards {
  int count = 1;
  int index = 0;
};

class FlatLayout {
 public:
  static constexpr int64_t kAlignment = 64;  // Elements.

  // Fills buckets from the highest unit down; a bucket closes once it holds slices of `bucket_elements` or more logical
  // elements, so that all tensor ranks close it alike, and where the next unit is of another stage. `stage_of_unit` may
  // be empty: one stage.
  FlatLayout(std::vector<ParameterGroup> groups, int64_t bucket_elements, Shards shards = {},
             const std::vector<int>& stage_of_unit = {});

  const std::vector<ParameterGroup>& groups() const { return groups_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const GroupPlace& place(size_t group) const { return places_[group]; }
  size_t index(const std::string& group_name) const { return index_.at(group_name); }
  const Shards& shards() const { return shards_; }

  Range whole(size_t bucket) const { return {0, buckets_[bucket].elements}; }
  Range shard(size_t bucket) const;
  // Parts of this rank's shard that a sum over all ranks of the job counts here, so that it counts every logical
  // element once: no copy that another tensor rank or stage has as well. Padding, which is zero, may be among them.
  std::vector<Range> counted(size_t bucket) const;
  // What lies in the shards of this rank or, if `whole`, in its buckets; in storage order, without empty pieces.
  std::vector<Piece> pieces(bool whole) const;
  Range part_range(size_t group, size_t part) const;  // Of its bucket.

 private:
  void fill_bucket(const std::vector<size_t>& members);

  std::vector<ParameterGroup> groups_;
  Shards shards_;
  std::vector<GroupPlace> places_;
  std::vector<Bucket> buckets_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace telar::parallel
