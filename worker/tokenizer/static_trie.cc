#include "worker/tokenizer/static_trie.h"

#include <algorithm>

namespace telar::tokenizer {
namespace {

constexpr size_t kBlock = 256;
constexpr int kMostTries = 256;  // Places that are looked at for a node of several children before a new block is.

}  // namespace

StaticTrie::StaticTrie(std::vector<std::pair<std::string_view, int32_t>> keys) : units_(kBlock) {
  std::sort(keys.begin(), keys.end());
  units_[0].parent = 0;  // Taken; and base 0 leads to places of which none is a child of a leaf.
  std::vector<Range> todo = {{0, 0, keys.size(), 0}};
  while (!todo.empty()) {
    const Range range = todo.back();
    todo.pop_back();
    add_children(keys, range, todo);
  }
}

void StaticTrie::add_children(const std::vector<std::pair<std::string_view, int32_t>>& keys, const Range& range,
                              std::vector<Range>& todo) {
  size_t first = range.first;
  if (first < range.end && keys[first].first.size() == range.depth) units_[range.node].value = keys[first++].second;
  if (first == range.end) return;
  std::vector<unsigned char> bytes;
  std::vector<size_t> begins;
  for (size_t at = first; at < range.end; ++at) {
    const auto byte = static_cast<unsigned char>(keys[at].first[range.depth]);
    if (!bytes.empty() && bytes.back() == byte) continue;
    bytes.push_back(byte);
    begins.push_back(at);
  }
  const uint32_t base = find_base(bytes);
  units_[range.node].base = base;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint32_t child = base ^ bytes[i];
    units_[child].parent = range.node;
    todo.push_back({child, begins[i], i + 1 < bytes.size() ? begins[i + 1] : range.end, range.depth + 1});
  }
}

uint32_t StaticTrie::find_base(const std::vector<unsigned char>& bytes) {
  while (first_free_ < units_.size() && units_[first_free_].parent != kFree) ++first_free_;
  int tries = 0;
  for (uint32_t at = first_free_; at < units_.size() && tries < kMostTries; ++at) {
    if (units_[at].parent != kFree) continue;
    ++tries;
    const uint32_t base = at ^ bytes.front();
    const auto is_free = [&](unsigned char byte) { return units_[base ^ byte].parent == kFree; };
    if (std::all_of(bytes.begin(), bytes.end(), is_free)) return base;
  }
  const auto block = static_cast<uint32_t>(units_.size());
  units_.resize(units_.size() + kBlock);
  return block;
}

}  // namespace telar::tokenizer
