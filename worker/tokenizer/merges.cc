#include "worker/tokenizer/merges.h"

#include <algorithm>
#include <bit>

namespace telar::tokenizer {
namespace {

constexpr size_t kShort = 48;  // Up to so many symbols a scan for the least rank is faster than a heap.
constexpr uint32_t kNobody = UINT32_MAX;

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Merges::Merges(size_t expected) {
  slots_.assign(std::bit_ceil(std::max<size_t>(expected * 2, 16)), Slot{kEmpty, {kNoRank, 0}});
  shift_ = 64 - std::countr_zero(slots_.size());
}

size_t Merges::slot_of(uint64_t pair) const {
  size_t at = (pair * 0x9E3779B97F4A7C15u) >> shift_;
  while (slots_[at].pair != pair && slots_[at].pair != kEmpty) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void Merges::grow() {
  std::vector<Slot> old(slots_.size() * 2, Slot{kEmpty, {kNoRank, 0}});
  old.swap(slots_);
  --shift_;
  for (const Slot& slot : old) {
    if (slot.pair != kEmpty) slots_[slot_of(slot.pair)] = slot;
  }
}

void Merges::add(int32_t left, int32_t right, Merge merge) {
  if ((used_ + 1) * 2 > slots_.size()) grow();
  const uint64_t pair = pair_of(left, right);
  Slot& slot = slots_[slot_of(pair)];
  used_ += slot.pair == kEmpty;
  slot = {pair, merge};
}

Merges::Merge Merges::find(int32_t left, int32_t right) const { return slots_[slot_of(pair_of(left, right))].merge; }

void Merges::encode(std::string_view word, const int32_t (&byte_ids)[256], Scratch& scratch,
                    std::vector<int32_t>& out) const {
  scratch.ids.clear();
  for (const char byte : word) scratch.ids.push_back(byte_ids[static_cast<unsigned char>(byte)]);
  if (word.size() <= kShort) {
    encode_short(scratch, out);
  } else {
    encode_long(scratch, out);
  }
}

void Merges::encode_short(Scratch& scratch, std::vector<int32_t>& out) const {
  std::vector<int32_t>& ids = scratch.ids;
  std::vector<Merge>& merges = scratch.merges;  // merges[i] is that of ids[i] and ids[i + 1].
  merges.clear();
  for (size_t at = 0; at + 1 < ids.size(); ++at) merges.push_back(find(ids[at], ids[at + 1]));
  while (!merges.empty()) {
    size_t best = 0;
    for (size_t at = 1; at < merges.size(); ++at) {
      if (merges[at].rank < merges[best].rank) best = at;
    }
    if (merges[best].rank == kNoRank) break;
    ids[best] = merges[best].id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    merges.erase(merges.begin() + static_cast<std::ptrdiff_t>(best));
    if (best > 0) merges[best - 1] = find(ids[best - 1], ids[best]);
    if (best < merges.size()) merges[best] = find(ids[best], ids[best + 1]);
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

namespace {

// The least rank, then the leftmost, at the front of a heap.
bool later(const Merges::Scratch::Candidate& a, const Merges::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

void Merges::note(Scratch& scratch, uint32_t left) const {
  const auto& symbols = scratch.symbols;
  if (left == kNobody || symbols[left].next == kNobody) return;
  const int32_t left_id = symbols[left].id;
  const int32_t right_id = symbols[symbols[left].next].id;
  const Merge merge = find(left_id, right_id);
  if (merge.rank == kNoRank) return;
  scratch.heap.push_back({merge.rank, left, merge.id, left_id, right_id});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
}

void Merges::encode_long(Scratch& scratch, std::vector<int32_t>& out) const {
  constexpr int32_t kGone = -1;
  auto& symbols = scratch.symbols;
  symbols.clear();
  scratch.heap.clear();
  const auto count = static_cast<uint32_t>(scratch.ids.size());
  for (uint32_t at = 0; at < count; ++at) {
    symbols.push_back({scratch.ids[at], at == 0 ? kNobody : at - 1, at + 1 == count ? kNobody : at + 1});
  }
  for (uint32_t at = 0; at < count; ++at) note(scratch, at);
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), later);
    const Scratch::Candidate candidate = scratch.heap.back();
    scratch.heap.pop_back();
    Scratch::Symbol& left = symbols[candidate.left];
    if (left.id != candidate.left_id || left.next == kNobody || symbols[left.next].id != candidate.right_id) continue;
    Scratch::Symbol& right = symbols[left.next];
    left.id = candidate.id;
    right.id = kGone;
    left.next = right.next;
    if (left.next != kNobody) symbols[left.next].previous = candidate.left;
    note(scratch, left.previous);
    note(scratch, candidate.left);
  }
  for (const Scratch::Symbol& symbol : symbols) {
    if (symbol.id != kGone) out.push_back(symbol.id);
  }
}

}  // namespace telar::tokenizer
