// SentencePiece models, by our own code: the library's bundled copy of protobuf has the symbols of ours.
#include <algorithm>
#include <cfloat>
#include <functional>
#include <optional>

#include "absl/strings/str_cat.h"
#include "worker/tokenizer/added_tokens.h"
#include "worker/tokenizer/readers.h"
#include "worker/tokenizer/sentencepiece_model.h"
#include "worker/tokenizer/unicode.h"

namespace telar::tokenizer {
namespace {

constexpr std::string_view kSpaceSymbol = "\u2581";

// Bytes of the character at `at` by its first byte alone.
size_t character_bytes(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t bytes = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return std::min(bytes, text.size() - at);
}

// Cuts normalized text into pieces; calls piece(text, id) in order.
using PieceSink = std::function<void(std::string_view, int32_t)>;

// The best path by the sum of the pieces' scores. Sums are in single precision, from the left, as the library's: ties
// decide, and are frequent.
class UnigramModel {
 public:
  explicit UnigramModel(const SentencePieceModel& model) : model_(model) {
    float least = FLT_MAX;
    for (const auto& [text, id] : model.normal) {
      trie_.insert(text, id);
      const auto& piece = model.pieces[static_cast<size_t>(id)];
      if (piece.type != SentencePieceModel::kNormal) continue;
      least = std::min(least, piece.score);
      most_ = std::max(most_, piece.score);
    }
    unknown_score_ = least - 10.0f;
  }

  void cut(std::string_view text, const PieceSink& sink) const {
    std::vector<Node> nodes(text.size() + 1);
    for (size_t begin = 0; begin < text.size();) {
      const float before = nodes[begin].score;
      const size_t character = character_bytes(text, begin);
      bool single = false;
      uint32_t at = 0;
      for (size_t end = begin; end < text.size();) {
        at = trie_.next(at, static_cast<unsigned char>(text[end++]));
        if (at == 0) break;
        const int32_t id = trie_.value(at);
        if (id == ByteTrie::kNone) continue;
        const auto& piece = model_.pieces[static_cast<size_t>(id)];
        if (piece.type == SentencePieceModel::kUnused) continue;
        const float score = piece.type == SentencePieceModel::kUserDefined
                                ? static_cast<float>(end - begin) * most_ - 0.1f
                                : piece.score;
        offer(nodes[end], begin, id, score + before);
        single = single || end - begin == character;
      }
      if (!single) offer(nodes[begin + character], begin, model_.unknown_id, unknown_score_ + before);
      begin += character;
    }
    std::vector<std::pair<std::string_view, int32_t>> pieces;
    for (size_t end = text.size(); end > 0; end = nodes[end].begin) {
      pieces.emplace_back(text.substr(nodes[end].begin, end - nodes[end].begin), nodes[end].id);
    }
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) sink(piece->first, piece->second);
  }

 private:
  struct Node {
    size_t begin = 0;
    float score = 0;
    int32_t id = -1;  // Not reached.
  };
  static void offer(Node& node, size_t begin, int32_t id, float score) {
    if (node.id == -1 || score > node.score) node = {begin, score, id};
  }

  const SentencePieceModel& model_;
  ByteTrie trie_;
  float most_ = FLT_MIN;
  float unknown_score_;
};

// Merges neighbours whose joined text is the piece with the highest score, the leftmost of them first.
class SentencePieceBpe {
 public:
  explicit SentencePieceBpe(const SentencePieceModel& model) : model_(model) {}

  void cut(std::string_view text, const PieceSink& sink) const {
    Work work{text, {}, {}, {}};
    for (size_t at = 0; at < text.size();) {
      size_t end = 0;
      const bool whole = model_.user_defined.longest(text, at, end) != ByteTrie::kNone;
      if (!whole) end = at + character_bytes(text, at);
      const size_t index = work.symbols.size();
      work.symbols.push_back({at, end - at, index - 1, index + 1, whole});
      at = end;
    }
    if (work.symbols.empty()) return;
    work.symbols.front().previous = kNobody;
    work.symbols.back().next = kNobody;
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
      emit(work, text.substr(work.symbols[index].begin, work.symbols[index].size), sink);
    }
  }

 private:
  static constexpr size_t kNobody = SIZE_MAX;
  struct Symbol {
    size_t begin;
    size_t size;
    size_t previous;
    size_t next;
    bool whole;  // Never merged.
  };
  struct Candidate {
    float score;
    size_t left;
    size_t right;
    size_t size;
  };
  struct Work {
    std::string_view text;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::unordered_map<std::string_view, size_t> cuts;  // Of pieces that are not to be used: the left part's size.
  };
  static bool later(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.left > b.left;
  }

  void note(Work& work, size_t index) const {
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

  void emit(const Work& work, std::string_view text, const PieceSink& sink) const {
    const auto reserved = model_.reserved.find(text);
    const auto normal = model_.normal.find(text);
    const int32_t id = reserved != model_.reserved.end() ? reserved->second
                       : normal != model_.normal.end()   ? normal->second
                                                         : model_.unknown_id;
    const auto cut = work.cuts.find(text);
    if (model_.pieces[static_cast<size_t>(id)].type != SentencePieceModel::kUnused || cut == work.cuts.end()) {
      sink(text, id);
      return;
    }
    emit(work, text.substr(0, cut->second), sink);
    emit(work, text.substr(cut->second), sink);
  }

  const SentencePieceModel& model_;
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  // Everything that points into the model is made behind it.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> create(SentencePieceModel model, const std::string& end) {
    std::unique_ptr<SentencePieceTokenizer> made(new SentencePieceTokenizer(std::move(model)));
    const SentencePieceModel& mine = made->model_;
    auto normalizer = SentencePieceNormalizer::create(mine.normalization, mine.whitespace_as_suffix, mine.user_defined);
    if (!normalizer.ok()) return normalizer.status();
    made->normalizer_.emplace(*std::move(normalizer));
    if (!mine.denormalization.table.empty()) {
      auto back = SentencePieceNormalizer::create(mine.denormalization, mine.whitespace_as_suffix, made->nothing_);
      if (!back.ok()) return back.status();
      made->denormalizer_.emplace(*std::move(back));
    }
    if (!end.empty()) {
      const auto id = made->find(end);
      if (!id) return absl::NotFoundError("end of document");
      made->end_ = *id;
    }
    return made;
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(model_.pieces.size()); }
  int32_t end_of_document() const override { return end_; }
  std::optional<int32_t> find(std::string_view text) const override {
    for (const TextMap* map : {&model_.reserved, &model_.normal}) {
      const auto found = map->find(text);
      if (found != map->end()) return found->second;
    }
    return std::nullopt;
  }

 private:
  explicit SentencePieceTokenizer(SentencePieceModel model)
      : model_(std::move(model)), special_(control_tokens(model_)) {
    if (model_.algorithm == SentencePieceModel::kUnigram) {
      unigram_.emplace(model_);
    } else {
      bpe_.emplace(model_);
    }
    const int32_t end = model_.end_id;
    if (end >= 0 && end < vocab_size() && type(end) == SentencePieceModel::kControl) end_ = end;
  }

  static std::vector<AddedToken> control_tokens(const SentencePieceModel& model) {
    std::vector<AddedToken> tokens;
    for (const auto& [text, id] : model.reserved) {
      if (model.pieces[static_cast<size_t>(id)].type == SentencePieceModel::kControl) {
        tokens.push_back({.id = id, .text = text, .special = true});
      }
    }
    return tokens;
  }

  int type(int32_t id) const { return model_.pieces[static_cast<size_t>(id)].type; }

  void do_encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const override {
    special_.split(
        text, options.special_tokens, [&](std::string_view section) { encode_section(section, ids); },
        [&](int32_t id) { ids.push_back(id); });
  }

  void encode_section(std::string_view text, std::vector<int32_t>& ids) const {
    const std::string normalized = normalizer_->normalize(text);
    bool behind_unknown = false;
    const PieceSink sink = [&](std::string_view piece, int32_t id) {
      const bool unknown = id == model_.unknown_id;
      if (unknown && model_.byte_fallback) {
        for (const char byte : piece) ids.push_back(model_.byte_ids[static_cast<unsigned char>(byte)]);
      } else if (!unknown || !behind_unknown) {  // A run of unknown pieces is one.
        ids.push_back(id);
      }
      behind_unknown = unknown;
    };
    if (unigram_) {
      unigram_->cut(normalized, sink);
    } else {
      bpe_->cut(normalized, sink);
    }
  }

  absl::StatusOr<std::string> do_decode(std::span<const int32_t> ids, bool special_tokens) const override {
    std::string text;
    std::string bytes;  // Of byte pieces in a row.
    const auto flush = [&] {
      for (size_t at = 0; at < bytes.size();) {
        const Character character = character_at(bytes, at);
        text.append(character.code == kNoCodePoint ? "\uFFFD" : bytes.substr(at, character.length));
        at += character.length;
      }
      bytes.clear();
    };
    const auto& rules = model_.normalization;
    bool at_start = true;
    bool took_space = false;
    for (size_t at = 0; at < ids.size(); ++at) {
      const int32_t id = ids[at];
      if (id < 0 || id >= vocab_size()) {
        return absl::OutOfRangeError(
            absl::StrCat("token ", at, ": id ", id, " is outside the vocabulary of ", vocab_size()));
      }
      std::string_view piece = model_.pieces[static_cast<size_t>(id)].text;
      if (type(id) == SentencePieceModel::kByte) {
        bytes.push_back(static_cast<char>(std::find(model_.byte_ids, model_.byte_ids + 256, id) - model_.byte_ids));
        continue;
      }
      flush();
      if (took_space || !text.empty()) at_start = false;
      took_space = false;
      if (type(id) == SentencePieceModel::kControl || id == end_) {
        if (special_tokens) text.append(piece);
      } else if (type(id) == SentencePieceModel::kUnknown) {
        text.append(model_.unknown_surface);
      } else {
        if (at_start && (rules.add_dummy_prefix || rules.remove_extra_whitespaces) && piece.starts_with(kSpaceSymbol)) {
          piece.remove_prefix(kSpaceSymbol.size());
          took_space = !rules.remove_extra_whitespaces;
        }
        append_piece(piece, text);
      }
    }
    flush();
    return denormalizer_ ? denormalizer_->normalize(text) : text;
  }

  static void append_piece(std::string_view piece, std::string& text) {
    for (size_t at = 0; at < piece.size();) {
      const size_t space = std::min(piece.find(kSpaceSymbol, at), piece.size());
      text.append(piece.substr(at, space - at));
      if (space < piece.size()) text.push_back(' ');
      at = std::min(space + kSpaceSymbol.size(), piece.size());
    }
  }

  const SentencePieceModel model_;
  const ByteTrie nothing_;
  const AddedTokens special_;
  std::optional<SentencePieceNormalizer> normalizer_;
  std::optional<SentencePieceNormalizer> denormalizer_;
  std::optional<UnigramModel> unigram_;
  std::optional<SentencePieceBpe> bpe_;
  int32_t end_ = -1;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> open_sentencepiece(const v1::TokenizerSpec& spec) {
  const auto file = read_tokenizer_file(spec.path());
  if (!file.ok()) return file.status();
  auto model = parse_sentencepiece_model(*file);
  auto made = model.ok() ? SentencePieceTokenizer::create(*std::move(model), spec.end_of_document()) : model.status();
  if (made.ok()) return made;
  if (absl::IsNotFound(made.status())) return unknown_end_of_document(spec);
  return refused_file(spec, std::string(made.status().message()));
}

}  // namespace telar::tokenizer
