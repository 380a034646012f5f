// SentencePiece models, by our own code: the library's bundled copy of protobuf has the symbols of ours.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "worker/tokenizer/added_tokens.h"
#include "worker/tokenizer/readers.h"
#include "worker/tokenizer/scratch_pool.h"
#include "worker/tokenizer/sentencepiece_cut.h"
#include "worker/tokenizer/sentencepiece_model.h"
#include "worker/tokenizer/unicode.h"
#include "worker/tokenizer/word_cache.h"

namespace telar::tokenizer {
namespace {

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

  struct Scratch {
    std::string normalized;
    std::vector<CutPiece> pieces;
    std::vector<UnigramModel::Node> nodes;
    SentencePieceBpe::Work work;
    std::unique_ptr<WordCache> cache;  // Where words are cut by themselves.
  };

  void do_encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const override {
    const auto scratch = scratches_.borrow([this] {
      auto made = std::make_unique<Scratch>();
      if (bpe_ && bpe_->cuts_words()) made->cache = std::make_unique<WordCache>();
      return made;
    });
    special_.split(
        text, options.special_tokens, [&](std::string_view section) { encode_section(section, *scratch, ids); },
        [&](int32_t id) { ids.push_back(id); });
  }

  void encode_section(std::string_view section, Scratch& scratch, std::vector<int32_t>& ids) const {
    normalizer_->normalize(section, scratch.normalized);
    std::string_view text = scratch.normalized;
    bool behind_unknown = false;
    if (unigram_) {
      scratch.pieces.clear();
      unigram_->cut(text, scratch.nodes, scratch.pieces);
      append_pieces(text, scratch.pieces, behind_unknown, ids);
    } else if (scratch.cache == nullptr) {
      append_merged(text, scratch, behind_unknown, ids);
    } else {
      while (!text.empty()) {
        const size_t size = word_size(text);
        append_word(text.substr(0, size), scratch, behind_unknown, ids);
        text.remove_prefix(size);
      }
    }
  }

  // Space symbols, and what is up to the next one.
  static size_t word_size(std::string_view text) {
    size_t at = 0;
    while (text.substr(at).starts_with(kSpaceSymbol)) at += kSpaceSymbol.size();
    return std::min(text.find(kSpaceSymbol, at), text.size());
  }

  void append_word(std::string_view word, Scratch& scratch, bool& behind_unknown, std::vector<int32_t>& ids) const {
    if (word.size() > WordCache::kMostBytes) {
      append_merged(word, scratch, behind_unknown, ids);
      return;
    }
    const WordCache::Key key(word);
    const size_t place = key.place();
    if (scratch.cache->find(key, place, ids)) {
      behind_unknown = false;
      return;
    }
    const size_t before = ids.size();
    append_merged(word, scratch, behind_unknown, ids);
    // What is unknown depends on what is before it, unless it becomes bytes.
    const auto is_unknown = [this](const CutPiece& piece) { return piece.id == model_.unknown_id; };
    const bool alike = model_.byte_fallback || std::ranges::none_of(scratch.pieces, is_unknown);
    if (alike) scratch.cache->put(key, place, std::span<const int32_t>(ids).subspan(before));
  }

  void append_merged(std::string_view text, Scratch& scratch, bool& behind_unknown, std::vector<int32_t>& ids) const {
    scratch.pieces.clear();
    bpe_->cut(text, scratch.work, scratch.pieces);
    append_pieces(text, scratch.pieces, behind_unknown, ids);
  }

  void append_pieces(std::string_view text, std::span<const CutPiece> pieces, bool& behind_unknown,
                     std::vector<int32_t>& ids) const {
    for (const CutPiece& piece : pieces) {
      const bool unknown = piece.id == model_.unknown_id;
      if (unknown && model_.byte_fallback) {
        for (const char byte : text.substr(0, piece.size)) {
          ids.push_back(model_.byte_ids[static_cast<unsigned char>(byte)]);
        }
      } else if (!unknown || !behind_unknown) {  // A run of unknown pieces is one.
        ids.push_back(piece.id);
      }
      behind_unknown = unknown;
      text.remove_prefix(piece.size);
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
    if (!denormalizer_) return text;
    std::string out;
    denormalizer_->normalize(text, out);
    return out;
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
  mutable ScratchPool<Scratch> scratches_;
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
