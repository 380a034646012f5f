// Keys of bytes that are known from the start, walked down a byte at a time with one look into memory each.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace telar::tokenizer {

// A double array: the child of a node by a byte is at base xor byte, if that place says so.
class StaticTrie {
 public:
  static constexpr int32_t kNone = -1;

  // Keys are not empty, and different; values are 0 or above.
  explicit StaticTrie(std::vector<std::pair<std::string_view, int32_t>> keys);

  // The child, or 0, which is the root and nobody's child.
  uint32_t next(uint32_t node, unsigned char byte) const {
    const uint32_t at = units_[node].base ^ byte;
    return units_[at].parent == node ? at : 0;
  }
  int32_t value(uint32_t node) const { return units_[node].value; }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Unit {
    uint32_t base = 0;
    uint32_t parent = kFree;
    int32_t value = kNone;
  };
  struct Range {
    uint32_t node = 0;
    size_t first = 0, end = 0, depth = 0;  // Keys that go through the node.
  };
  void add_children(const std::vector<std::pair<std::string_view, int32_t>>& keys, const Range& range,
                    std::vector<Range>& todo);
  uint32_t find_base(const std::vector<unsigned char>& bytes);

  std::vector<Unit> units_;  // Whole blocks of 256, so that no byte leads out of them.
  uint32_t first_free_ = 1;
};

}  // namespace telar::tokenizer
