#include "worker/tokenizer/sentencepiece_cut.h"

#include <algorithm>
#include <cfloat>
#include <string>

namespace telar::tokenizer {
namespace {

// Bytes of the character at `at` by its first byte alone.
size_t character_bytes(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t bytes = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return std::min(bytes, text.size() - at);
}

}  // namespace

StaticTrie UnigramModel::make_trie(const SentencePieceModel& model) {
  std::vector<std::pair<std::string_view, int32_t>> keys;
  for (const auto& [text, id] : model.normal) {
    if (model.pieces[static_cast<size_t>(id)].type != SentencePieceModel::kUnused) keys.emplace_back(text, id);
  }
  return StaticTrie(std::move(keys));
}

UnigramModel::UnigramModel(const SentencePieceModel& model) : trie_(make_trie(model)), unknown_id_(model.unknown_id) {
  float least = FLT_MAX, most = FLT_MIN;
  for (const auto& [text, id] : model.normal) {
    const auto& piece = model.pieces[static_cast<size_t>(id)];
    if (piece.type != SentencePieceModel::kNormal) continue;
    least = std::min(least, piece.score);
    most = std::max(most, piece.score);
  }
  unknown_score_ = least - 10.0f;
  for (const auto& piece : model.pieces) {
    scores_.push_back(piece.type == SentencePieceModel::kUserDefined
                          ? static_cast<float>(piece.text.size()) * most - 0.1f
                          : piece.score);
  }
}

void UnigramModel::cut(std::string_view text, std::vector<Node>& nodes, std::vector<CutPiece>& pieces) const {
  nodes.assign(text.size() + 1, {0, 0, -1});
  const auto offer = [&](size_t begin, size_t end, int32_t id, float score) {
    Node& node = nodes[end];
    if (node.id == -1 || score > node.score) node = {score, static_cast<uint32_t>(end - begin), id};
  };
  for (size_t begin = 0; begin < text.size();) {
    const float before = nodes[begin].score;
    const size_t character = character_bytes(text, begin);
    bool single = false;
    uint32_t at = 0;
    for (size_t end = begin; end < text.size();) {
      at = trie_.next(at, static_cast<unsigned char>(text[end++]));
      if (at == 0) break;
      const int32_t id = trie_.value(at);
      if (id == StaticTrie::kNone) continue;
      offer(begin, end, id, scores_[static_cast<size_t>(id)] + before);
      single = single || end - begin == character;
    }
    if (!single) offer(begin, begin + character, unknown_id_, unknown_score_ + before);
    begin += character;
  }
  const auto first = static_cast<ptrdiff_t>(pieces.size());
  for (size_t end = text.size(); end > 0; end -= nodes[end].size) pieces.push_back({nodes[end].size, nodes[end].id});
  std::reverse(pieces.begin() + first, pieces.end());
}

SentencePieceBpe::SentencePieceBpe(const SentencePieceModel& model) : model_(model) {
  for (const auto& [text, id] : model.normal) {
    if (model.pieces[static_cast<size_t>(id)].type == SentencePieceModel::kUnused) cuts_words_ = false;
    size_t at = 0;
    while (text.compare(at, kSpaceSymbol.size(), kSpaceSymbol) == 0) at += kSpaceSymbol.size();
    if (text.find(kSpaceSymbol, at) != std::string::npos) cuts_words_ = false;
  }
}

void SentencePieceBpe::split(Work& work) const {
  work.symbols.clear();
  for (size_t at = 0; at < work.text.size();) {
    size_t end = 0;
    const bool whole = model_.user_defined.longest(work.text, at, end) != ByteTrie::kNone;
    if (!whole) end = at + character_bytes(work.text, at);
    const size_t index = work.symbols.size();
    work.symbols.push_back({at, end - at, index - 1, index + 1, whole});
    at = end;
  }
  if (work.symbols.empty()) return;
  work.symbols.front().previous = kNobody;
  work.symbols.back().next = kNobody;
}

void SentencePieceBpe::cut(std::string_view text, Work& work, std::vector<CutPiece>& pieces) const {
  work.text = text;
  work.heap.clear();
  work.cuts.clear();
  split(work);
  if (work.symbols.empty()) return;
  for (size_t index = 0; index < work.symbols.size(); ++index) note(work, index);
  while (!work.heap.empty()) {
    std::pop_heap(work.heap.begin(), work.heap.end(), later);
    const Candidate candidate = work.heap.back();
    work.heap.pop_back();
    Symbol& left = work.symbols[candidate.left];
    if (left.size == 0 || left.next != candidate.right) continue;
    Symbol& right = work.symbols[left.next];
    if (left.size + right.size != candidate.size) continue;
    left.size += right.size;
    right.size = 0;
    left.next = right.next;
    if (left.next != kNobody) work.symbols[left.next].previous = candidate.left;
    if (left.previous != kNobody) note(work, left.previous);
    note(work, candidate.left);
  }
  for (size_t index = 0; index != kNobody; index = work.symbols[index].next) {
    emit(work, text.substr(work.symbols[index].begin, work.symbols[index].size), pieces);
  }
}

void SentencePieceBpe::note(Work& work, size_t index) const {
  const Symbol& left = work.symbols[index];
  if (left.next == kNobody || left.whole || work.symbols[left.next].whole) return;
  const size_t size = left.size + work.symbols[left.next].size;
  const std::string_view joined = work.text.substr(left.begin, size);
  const auto found = model_.normal.find(joined);
  if (found == model_.normal.end()) return;
  const auto& piece = model_.pieces[static_cast<size_t>(found->second)];
  work.heap.push_back({piece.score, index, left.next, size});
  std::push_heap(work.heap.begin(), work.heap.end(), later);
  if (piece.type == SentencePieceModel::kUnused) work.cuts[joined] = left.size;
}

void SentencePieceBpe::emit(const Work& work, std::string_view text, std::vector<CutPiece>& pieces) const {
  const auto reserved = model_.reserved.find(text);
  const auto normal = model_.normal.find(text);
  const int32_t id = reserved != model_.reserved.end() ? reserved->second
                     : normal != model_.normal.end()   ? normal->second
                                                       : model_.unknown_id;
  const auto cut = work.cuts.find(text);
  if (model_.pieces[static_cast<size_t>(id)].type != SentencePieceModel::kUnused || cut == work.cuts.end()) {
    pieces.push_back({static_cast<uint32_t>(text.size()), id});
    return;
  }
  emit(work, text.substr(0, cut->second), pieces);
  emit(work, text.substr(cut->second), pieces);
}

}  // namespace telar::tokenizer
