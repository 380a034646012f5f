#include "worker/data/shard_writer.h"

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/published_file.h"
#include "worker/data/id_type.h"
#include "worker/data/llmc_format.h"
#include "worker/data/megatron_format.h"

namespace telar::data {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

absl::Status append_ids(PublishedFile& file, std::span<const int32_t> ids, int id_bytes) {
  if (id_bytes == 4) return file.append(std::as_bytes(ids));
  std::array<uint16_t, 8192> narrow;
  while (!ids.empty()) {
    const size_t count = std::min(ids.size(), narrow.size());
    for (size_t at = 0; at < count; ++at) narrow[at] = static_cast<uint16_t>(ids[at]);
    if (auto status = file.append(std::as_bytes(std::span(narrow).first(count))); !status.ok()) return status;
    ids = ids.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status too_long(const std::string& name, uint64_t tokens, uint64_t more, uint64_t most) {
  return absl::OutOfRangeError(absl::StrCat("shard ", name, ": a document of ", more, " tokens behind ", tokens,
                                            "; the format counts to ", most));
}

class MegatronWriter : public ShardWriter {
 public:
  MegatronWriter(std::string directory, std::string name, int id_bytes, std::unique_ptr<PublishedFile> bin)
      : directory_(std::move(directory)), name_(std::move(name)), id_bytes_(id_bytes), bin_(std::move(bin)) {}

  absl::Status append(std::span<const int32_t> document) override {
    if (document.size() > INT32_MAX) return too_long(name_, 0, document.size(), INT32_MAX);
    lengths_.push_back(static_cast<int32_t>(document.size()));
    tokens_ += document.size();
    return append_ids(*bin_, document, id_bytes_);
  }

  absl::StatusOr<ShardFiles> publish() override {
    if (auto status = bin_->publish(); !status.ok()) return status;
    auto index = PublishedFile::create(directory_, name_ + ".idx");
    if (!index.ok()) return index.status();
    auto status = write_index(**index);
    if (status.ok()) status = (*index)->publish();
    if (!status.ok()) return status;
    return ShardFiles{name_,          lengths_.size(),   tokens_, bin_->bytes(), (*index)->bytes(),
                      bin_->crc32c(), (*index)->crc32c()};
  }

 private:
  absl::Status write_index(PublishedFile& index) const {
    const uint64_t sequences = lengths_.size(), bounds = sequences + 1;
    const IdType type = id_bytes_ == 2 ? IdType::kU16 : IdType::kI32;
    auto status = index.append(std::as_bytes(std::span(kMegatronMagic)));
    if (status.ok()) status = index.append(bytes_of(kMegatronVersion));
    if (status.ok()) status = index.append(bytes_of(type));
    if (status.ok()) status = index.append(bytes_of(sequences));
    if (status.ok()) status = index.append(bytes_of(bounds));
    if (status.ok()) status = index.append(std::as_bytes(std::span(lengths_)));
    int64_t at = 0;
    for (size_t i = 0; i < sequences && status.ok(); ++i) {
      status = index.append(bytes_of(at));
      at += int64_t{lengths_[i]} * id_bytes_;
    }
    for (uint64_t i = 0; i < bounds && status.ok(); ++i) status = index.append(bytes_of(i));
    return status;
  }

  const std::string directory_, name_;
  const int id_bytes_;
  std::unique_ptr<PublishedFile> bin_;
  std::vector<int32_t> lengths_;
  uint64_t tokens_ = 0;
};

class LlmcWriter : public ShardWriter {
 public:
  LlmcWriter(std::string name, int id_bytes, uint64_t most, std::unique_ptr<PublishedFile> bin)
      : name_(std::move(name)), id_bytes_(id_bytes), most_(most), bin_(std::move(bin)) {}

  absl::Status append(std::span<const int32_t> document) override {
    if (document.size() > most_ - tokens_) return too_long(name_, tokens_, document.size(), most_);
    tokens_ += document.size();
    ++documents_;
    return append_ids(*bin_, document, id_bytes_);
  }

  absl::StatusOr<ShardFiles> publish() override {
    const bool narrow = id_bytes_ == 2;
    std::array<uint32_t, kLlmcHeaderBytes / 4> header{};
    header[kLlmcMagicWord] = narrow ? kLlmcMagicU16 : kLlmcMagicU32;
    header[kLlmcVersionWord] = narrow ? kLlmcVersionU16 : kLlmcVersionU32;
    header[kLlmcTokensWord] = static_cast<uint32_t>(tokens_);
    auto status = bin_->replace_start(std::as_bytes(std::span(header)));
    if (status.ok()) status = bin_->publish();
    if (!status.ok()) return status;
    return ShardFiles{name_, documents_, tokens_, bin_->bytes()};
  }

 private:
  const std::string name_;
  const int id_bytes_;
  const uint64_t most_;
  std::unique_ptr<PublishedFile> bin_;
  uint64_t documents_ = 0, tokens_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardWriter>> create_megatron_shard(const std::string& directory,
                                                                   const std::string& name, int id_bytes) {
  auto bin = PublishedFile::create(directory, name + ".bin");
  if (!bin.ok()) return bin.status();
  return std::make_unique<MegatronWriter>(directory, name, id_bytes, *std::move(bin));
}

absl::StatusOr<std::unique_ptr<ShardWriter>> create_llmc_shard(const std::string& directory, const std::string& name,
                                                               int id_bytes, uint64_t most_tokens) {
  auto bin = PublishedFile::create(directory, name + ".bin");
  if (!bin.ok()) return bin.status();
  const std::array<std::byte, kLlmcHeaderBytes> room{};  // The count is known at the end.
  if (auto status = (*bin)->append(room); !status.ok()) return status;
  return std::make_unique<LlmcWriter>(name, id_bytes, most_tokens, *std::move(bin));
}

}  // namespace telar::data
