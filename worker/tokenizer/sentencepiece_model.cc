#include "worker/tokenizer/sentencepiece_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace telar::tokenizer {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// One message: calls field(number, in) for each field, which reads it or returns false for one that it does not know,
// or sets `good` to false. False for bytes that are no message.
template <typename Field>
bool read_message(std::string_view bytes, const Field& field) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  for (;;) {
    const uint32_t tag = in.ReadTag();
    if (tag == 0) return in.ConsumedEntireMessage();
    bool good = true;
    if (!field(tag, in, good) && !WireFormatLite::SkipField(&in, tag)) return false;
    if (!good) return false;
  }
}

constexpr uint32_t varint(int number) { return WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_VARINT); }
constexpr uint32_t bytes_of(int number) {
  return WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}
constexpr uint32_t fixed32(int number) { return WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_FIXED32); }

bool read_bytes(CodedInputStream& in, std::string& out) {
  uint32_t size = 0;
  return in.ReadVarint32(&size) && size <= INT32_MAX && in.ReadString(&out, static_cast<int>(size));
}
template <typename T>
bool read_number(CodedInputStream& in, T& out) {
  uint64_t value = 0;
  const bool good = in.ReadVarint64(&value);
  out = static_cast<T>(value);
  return good;
}

bool read_piece(std::string_view bytes, SentencePieceModel::Piece& piece) {
  return read_message(bytes, [&](uint32_t tag, CodedInputStream& in, bool& good) {
    if (tag == bytes_of(1)) {
      good = read_bytes(in, piece.text);
    } else if (tag == fixed32(2)) {
      uint32_t score = 0;
      good = in.ReadLittleEndian32(&score);
      piece.score = std::bit_cast<float>(score);
    } else if (tag == varint(3)) {
      good = read_number(in, piece.type);
    } else {
      return false;
    }
    return true;
  });
}

bool read_trainer(std::string_view bytes, SentencePieceModel& model) {
  return read_message(bytes, [&](uint32_t tag, CodedInputStream& in, bool& good) {
    if (tag == varint(3)) {
      good = read_number(in, model.algorithm);
    } else if (tag == varint(24)) {
      good = read_number(in, model.whitespace_as_suffix);
    } else if (tag == varint(35)) {
      good = read_number(in, model.byte_fallback);
    } else if (tag == varint(42)) {
      good = read_number(in, model.end_id);
    } else if (tag == bytes_of(44)) {
      good = read_bytes(in, model.unknown_surface);
    } else {
      return false;
    }
    return true;
  });
}

bool read_normalization(std::string_view bytes, SentencePieceModel::Normalization& rules) {
  return read_message(bytes, [&](uint32_t tag, CodedInputStream& in, bool& good) {
    if (tag == bytes_of(2)) {
      good = read_bytes(in, rules.table);
    } else if (tag == varint(3)) {
      good = read_number(in, rules.add_dummy_prefix);
    } else if (tag == varint(4)) {
      good = read_number(in, rules.remove_extra_whitespaces);
    } else if (tag == varint(5)) {
      good = read_number(in, rules.escape_whitespaces);
    } else {
      return false;
    }
    return true;
  });
}

bool read_model(std::string_view bytes, SentencePieceModel& model) {
  return read_message(bytes, [&](uint32_t tag, CodedInputStream& in, bool& good) {
    std::string part;
    if (tag == bytes_of(1)) {
      good = read_bytes(in, part) && read_piece(part, model.pieces.emplace_back());
    } else if (tag == bytes_of(2)) {
      good = read_bytes(in, part) && read_trainer(part, model);
    } else if (tag == bytes_of(3)) {
      good = read_bytes(in, part) && read_normalization(part, model.normalization);
    } else if (tag == bytes_of(5)) {
      good = read_bytes(in, part) && read_normalization(part, model.denormalization);
    } else {
      return false;
    }
    return true;
  });
}

template <typename... Args>
absl::Status refused(fmt::format_string<Args...> text, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format(text, std::forward<Args>(args)...));
}

// <0x0A> -> 10; -1 for what is no byte's piece.
int byte_of(const std::string& piece) {
  for (int byte = 0; byte < 256; ++byte) {
    if (piece == fmt::format("<0x{:02X}>", byte)) return byte;
  }
  return -1;
}

absl::Status index_pieces(SentencePieceModel& model) {
  std::fill(std::begin(model.byte_ids), std::end(model.byte_ids), -1);
  for (size_t index = 0; index < model.pieces.size(); ++index) {
    const SentencePieceModel::Piece& piece = model.pieces[index];
    const auto id = static_cast<int32_t>(index);
    if (piece.text.empty() || piece.text.find('\0') != std::string::npos || piece.text.size() >= 8000) {
      return refused("pieces[{}]: its text is empty, too long or has a zero in it", id);
    }
    if (piece.score != piece.score) return refused("pieces[{}]: its score is no number", id);
    const bool normal = piece.type == SentencePieceModel::kNormal || piece.type == SentencePieceModel::kUserDefined ||
                        piece.type == SentencePieceModel::kUnused;
    if (!(normal ? model.normal : model.reserved).emplace(piece.text, id).second) {
      return refused("pieces[{}]: '{}' is there twice", id, piece.text);
    }
    switch (piece.type) {
      case SentencePieceModel::kNormal:
      case SentencePieceModel::kUnused:
      case SentencePieceModel::kControl:
        break;
      case SentencePieceModel::kUserDefined:
        model.user_defined.insert(piece.text, id);
        break;
      case SentencePieceModel::kUnknown:
        if (model.unknown_id >= 0) return refused("pieces[{}]: a second piece for what is unknown", id);
        model.unknown_id = id;
        break;
      case SentencePieceModel::kByte: {
        const int byte = byte_of(piece.text);
        if (byte < 0) return refused("pieces[{}]: '{}' is no byte as <0x0A> is", id, piece.text);
        model.byte_ids[byte] = id;
        break;
      }
      default:
        return refused("pieces[{}]: type {} is not known", id, piece.type);
    }
  }
  if (model.unknown_id < 0) return refused("pieces: none for what is unknown");
  for (int byte = 0; model.byte_fallback && byte < 256; ++byte) {
    if (model.byte_ids[byte] < 0) return refused("pieces: byte_fallback, but none for byte 0x{:02X}", byte);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SentencePieceModel> parse_sentencepiece_model(std::string_view file) {
  SentencePieceModel model;
  if (!read_model(file, model) || model.pieces.empty()) return refused("no SentencePiece model");
  if (model.pieces.size() >= static_cast<size_t>(kMostIds)) {
    return refused("{} pieces; fewer than {} are supported", model.pieces.size(), kMostIds);
  }
  if (model.algorithm != SentencePieceModel::kUnigram && model.algorithm != SentencePieceModel::kBpe) {
    return refused("trainer_spec.model_type {} is not supported; UNIGRAM (1) and BPE (2) are", model.algorithm);
  }
  if (auto status = index_pieces(model); !status.ok()) return status;
  return model;
}

}  // namespace telar::tokenizer
