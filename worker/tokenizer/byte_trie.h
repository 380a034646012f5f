// Keys of bytes, found as prefixes of a text.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace telar::tokenizer {

class ByteTrie {
 public:
  static constexpr int32_t kNone = -1;

  // `value` is 0 or above. A key that is there already gets the new value.
  void insert(std::string_view key, int32_t value) {
    uint32_t node = 0;
    for (const char byte : key) {
      uint32_t& child = child_or_new(node, static_cast<unsigned char>(byte));
      if (child == 0) {
        child = static_cast<uint32_t>(values_.size());
        values_.push_back(kNone);
      }
      node = child;
    }
    values_[node] = value;
  }

  bool empty() const { return values_.size() == 1; }
  bool begins_with(unsigned char byte) const { return first_[byte] != 0; }

  // Walks down along text[at...]: next(node, byte) is the child or 0, which is the root and nobody's child.
  uint32_t next(uint32_t node, unsigned char byte) const {
    if (node == 0) return first_[byte];
    const auto found = edges_.find(uint64_t{node} << 8 | byte);
    return found == edges_.end() ? 0 : found->second;
  }
  int32_t value(uint32_t node) const { return values_[node]; }

  // The longest key that `text` has at `at`: its value, and where it ends. kNone if there is none.
  int32_t longest(std::string_view text, size_t at, size_t& end) const {
    int32_t best = kNone;
    for (uint32_t node = 0; at < text.size();) {
      node = next(node, static_cast<unsigned char>(text[at++]));
      if (node == 0) break;
      if (values_[node] != kNone) {
        best = values_[node];
        end = at;
      }
    }
    return best;
  }

 private:
  uint32_t& child_or_new(uint32_t node, unsigned char byte) {
    return node == 0 ? first_[byte] : edges_[uint64_t{node} << 8 | byte];
  }

  uint32_t first_[256] = {};  // The root's children.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> values_ = {kNone};  // By node.
};

}  // namespace telar::tokenizer
