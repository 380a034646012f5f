// Byte pair encoding of one word.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace telar::tokenizer {

// Which pairs of tokens become which token, and in what order. Filled once, then immutable.
class Merges {
 public:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;

  // What encode() works in; its vectors keep their capacity.
  struct Scratch {
    struct Symbol {
      int32_t id;
      uint32_t previous;
      uint32_t next;
    };
    struct Candidate {
      uint32_t rank;
      uint32_t left;
      int32_t id;       // What the pair becomes.
      int32_t left_id;  // What it was when this was noted: it may have changed.
      int32_t right_id;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::vector<int32_t> ids;
    std::vector<Merge> merges;
  };

  // `expected`: how many pairs will be added, for the size of the table.
  explicit Merges(size_t expected);

  // A pair that is there already gets the new merge. Ids are below 2^31, ranks below kNoRank.
  void add(int32_t left, int32_t right, Merge merge);
  // rank kNoRank if there is none.
  Merge find(int32_t left, int32_t right) const;

  // Of all neighbours that a merge exists for, those of the least rank are merged, from the left, until none is left.
  // Starts from the ids of `word`'s bytes, and appends to `out`. n bytes take O(n log n).
  void encode(std::string_view word, const int32_t (&byte_ids)[256], Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Slot {
    uint64_t pair;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = UINT64_MAX;

  size_t slot_of(uint64_t pair) const;
  void encode_short(Scratch& scratch, std::vector<int32_t>& out) const;
  void encode_long(Scratch& scratch, std::vector<int32_t>& out) const;
  void note(Scratch& scratch, uint32_t left) const;
  void grow();

  std::vector<Slot> slots_;  // A power of two of them, open addressing.
  size_t used_ = 0;
  int shift_ = 0;
};

}  // namespace telar::tokenizer
