#include "worker/data/megatron_shard.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/megatron_format.h"

namespace telar::data {
namespace {

template <typename T>
T load(std::span<const std::byte> bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

constexpr uint64_t kLengthBytes = sizeof(int32_t);
constexpr uint64_t kPointerBytes = sizeof(int64_t);

}  // namespace

MegatronShard::MegatronShard(std::string path, std::string index_path, MappedFile bin, MappedFile idx)
    : path_(std::move(path)), index_path_(std::move(index_path)), bin_(std::move(bin)), idx_(std::move(idx)) {}

absl::StatusOr<MegatronShard> MegatronShard::open(const std::string& path) {
  if (!path.ends_with(".bin")) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", path, ": Megatron's data is named by its .bin"));
  }
  std::string index_path = path.substr(0, path.size() - 4) + ".idx";
  auto idx = MappedFile::open(index_path);
  if (!idx.ok()) return idx.status();
  auto bin = MappedFile::open(path);
  if (!bin.ok()) return bin.status();
  MegatronShard shard(path, std::move(index_path), *std::move(bin), *std::move(idx));
  auto status = shard.read_header();
  if (status.ok()) status = shard.check_sequences();
  if (status.ok()) status = shard.check_bounds();
  if (!status.ok()) return status;
  return shard;
}

absl::Status MegatronShard::broken_index(const std::string& what) const {
  return absl::DataLossError(absl::StrCat("data file ", index_path_, ": ", what));
}

int32_t MegatronShard::length(uint64_t sequence) const {
  return load<int32_t>(idx_.bytes(), kMegatronHeaderBytes + sequence * kLengthBytes);
}

int64_t MegatronShard::pointer(uint64_t sequence) const {
  return load<int64_t>(idx_.bytes(), pointers_at_ + sequence * kPointerBytes);
}

int64_t MegatronShard::bound(uint64_t index) const {
  return load<int64_t>(idx_.bytes(), documents_at_ + index * kPointerBytes);
}

absl::Status MegatronShard::read_header() {
  const auto bytes = idx_.bytes();
  if (bytes.size() < kMegatronHeaderBytes) {
    return broken_index(absl::StrCat(bytes.size(), " bytes, shorter than the header of ", kMegatronHeaderBytes));
  }
  const auto version = load<uint64_t>(bytes, kMegatronVersionAt);
  if (std::memcmp(bytes.data(), kMegatronMagic, kMegatronMagicBytes) != 0 || version != kMegatronVersion) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", index_path_,
                                                   ": not an index of Megatron: it begins with MMIDIDX, two zero bytes "
                                                   "and version ",
                                                   kMegatronVersion, "; this one has version ", version));
  }
  const auto code = load<uint8_t>(bytes, kMegatronTypeAt);
  const auto type = id_type_of(code);
  if (!type) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", index_path_, ": type code ", code, " at offset ",
                                                   kMegatronTypeAt, " is no integer of Megatron's (1 to 5, or 8)"));
  }
  type_ = *type;
  sequences_ = load<uint64_t>(bytes, kMegatronSequencesAt);
  bounds_ = load<uint64_t>(bytes, kMegatronBoundsAt);
  // Compared by the counts first: their bytes could overflow 64 bits.
  const bool countable = sequences_ <= bytes.size() && bounds_ <= bytes.size();
  const uint64_t needed =
      countable ? kMegatronHeaderBytes + sequences_ * (kLengthBytes + kPointerBytes) + bounds_ * kPointerBytes : 0;
  if (!countable || (bytes.size() != needed && bytes.size() != needed + sequences_)) {
    return broken_index(absl::StrCat(bytes.size(), " bytes, but its header says ", sequences_, " sequences and ",
                                     bounds_, " document bounds",
                                     countable ? absl::StrCat(" = ", needed, " bytes") : ""));
  }
  if (sequences_ == 0) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", index_path_, ": empty (0 sequences)"));
  }
  pointers_at_ = kMegatronHeaderBytes + sequences_ * kLengthBytes;
  documents_at_ = pointers_at_ + sequences_ * kPointerBytes;
  return absl::OkStatus();
}

absl::Status MegatronShard::check_sequences() const {
  const uint64_t size = size_of(type_), bin_bytes = bin_.bytes().size();
  const uint64_t last = sequences_ - 1;
  const auto refuse = [&](uint64_t sequence, const std::string& what) {
    return broken_index(absl::StrCat("sequence ", sequence, " (offset ", pointers_at_ + sequence * kPointerBytes,
                                     ") begins at byte ", pointer(sequence), " and has ", length(sequence),
                                     " tokens of ", size, " bytes, ", what));
  };
  // The end first: it tells a file that was cut without reading the whole index.
  if (length(last) < 0 || pointer(last) < 0 ||
      static_cast<uint64_t>(pointer(last)) + static_cast<uint64_t>(length(last)) * size != bin_bytes) {
    return refuse(last, absl::StrCat("but ", path_, " has ", bin_bytes, " bytes"));
  }
  uint64_t end = 0;
  for (uint64_t sequence = 0; sequence < sequences_; ++sequence) {
    const int32_t tokens = length(sequence);
    if (tokens < 0 || static_cast<uint64_t>(pointer(sequence)) != end) {
      return refuse(sequence, absl::StrCat("but the one before ends at byte ", end,
                                           "; sequences must follow one another in order"));
    }
    end += static_cast<uint64_t>(tokens) * size;
  }
  return absl::OkStatus();
}

absl::Status MegatronShard::check_bounds() const {
  int64_t before = 0;
  for (uint64_t index = 0; index < bounds_; ++index) {
    const int64_t value = bound(index);
    const bool first = index == 0, last = index + 1 == bounds_;
    const bool right = first ? value == 0 : value >= before;
    if (right && value <= static_cast<int64_t>(sequences_) && (!last || value == static_cast<int64_t>(sequences_))) {
      before = value;
      continue;
    }
    return broken_index(absl::StrCat("document bound ", index, " (offset ", documents_at_ + index * kPointerBytes,
                                     ") is ", value, " behind ", before, "; bounds ascend from 0 to the ", sequences_,
                                     " sequences"));
  }
  if (bounds_ >= 2) return absl::OkStatus();
  return broken_index(absl::StrCat(bounds_, " document bounds for ", sequences_, " sequences"));
}

uint64_t MegatronShard::document_end(uint64_t document) const {
  const int64_t sequence = bound(document + 1);
  if (sequence == static_cast<int64_t>(sequences_)) return tokens();
  return static_cast<uint64_t>(pointer(static_cast<uint64_t>(sequence))) / size_of(type_);
}

absl::Status MegatronShard::read(uint64_t first, std::span<int32_t> out, int64_t vocab) const {
  const std::byte* data = bin_.bytes().data();
  const size_t bad = widen(type_, data, first, out, vocab);
  if (bad == out.size()) return absl::OkStatus();
  const uint64_t token = first + bad;
  return absl::DataLossError(absl::StrCat("data file ", path_, ": token ", token, " (offset ", token * size_of(type_),
                                          ") has id ", id_at(type_, data, token), ", not below the vocabulary of ",
                                          vocab));
}

}  // namespace telar::data
