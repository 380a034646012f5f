#include "worker/prepare/inspect.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "worker/data/prepared.h"
#include "worker/data/sharded_source.h"
#include "worker/prepare/prepare.h"

namespace telar::prepare {
namespace {

namespace fs = std::filesystem;

// Ids from here on are taken for damage where no vocabulary is known: no tokenizer has as many.
constexpr int64_t kMostVocabulary = int64_t{1} << 24;
constexpr size_t kBlockTokens = size_t{1} << 18;

struct Located {
  Format format = Format::kPrepared;
  std::vector<std::string> paths;  // Directories if prepared, else .bin files.
};

std::string index_of(const std::string& bin) { return fs::path(bin).replace_extension(".idx").string(); }

// Adds what one path stands for.
absl::Status locate(const std::string& path, std::vector<std::pair<Format, std::string>>& found) {
  std::error_code error;
  if (!fs::exists(path, error)) return absl::NotFoundError(absl::StrCat(path, ": no such file or directory"));
  const auto add_bin = [&](const std::string& bin) {
    found.emplace_back(fs::exists(index_of(bin), error) ? Format::kMegatron : Format::kLlmc, bin);
  };
  if (!fs::is_directory(path, error)) {
    add_bin(path);
    return absl::OkStatus();
  }
  if (fs::exists(fs::path(path) / data::kDatasetFile, error)) {
    found.emplace_back(Format::kPrepared, path);
    return absl::OkStatus();
  }
  std::vector<std::string> bins;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".bin" && name[0] != '.') bins.push_back(entry.path().string());
  }
  if (bins.empty()) {
    return absl::NotFoundError(absl::StrCat(path, ": has neither ", data::kDatasetFile, " nor a .bin file"));
  }
  std::sort(bins.begin(), bins.end());
  for (const std::string& bin : bins) add_bin(bin);
  return absl::OkStatus();
}

absl::StatusOr<Located> locate_all(const std::vector<std::string>& paths) {
  if (paths.empty()) return absl::InvalidArgumentError("no directory or file given");
  std::vector<std::pair<Format, std::string>> found;
  for (const std::string& path : paths) {
    if (auto status = locate(path, found); !status.ok()) return status;
  }
  Located located{found.front().first, {}};
  for (const auto& [format, path] : found) {
    if (format != located.format) {
      return absl::InvalidArgumentError(
          absl::StrCat(found.front().second, " and ", path, " are of different formats; look at one at a time"));
    }
    located.paths.push_back(path);
  }
  return located;
}

void count_file(const std::string& path, OpenData& data) {
  std::error_code error;
  data.file_bytes += fs::file_size(path, error);
  ++data.files;
}

absl::Status open_prepared(const std::vector<std::string>& paths, OpenData& data) {
  data.format = "prepared";
  const auto directories = data::read_prepared(paths);
  if (!directories.ok()) return directories.status();
  auto source = data::open_prepared(*directories, INT32_MAX);
  if (!source.ok()) return source.status();
  data.source = *std::move(source);
  for (const auto& [path, dataset] : *directories) {
    data.vocabulary = dataset.tokenizer.vocabulary;
    data.end_of_document = dataset.tokenizer.end_of_document;
    data.text_bytes += dataset.text_bytes;
    for (const data::ShardFiles& shard : dataset.shards) {
      data.file_bytes += shard.bin_bytes + shard.idx_bytes;
      data.files += 2;
    }
  }
  const auto spec = data::prepared_tokenizer(*directories);
  if (!spec.ok()) return absl::OkStatus();
  auto tokenizer = open_tokenizer(*spec);
  if (tokenizer.ok()) data.tokenizer = *std::move(tokenizer);
  return absl::OkStatus();
}

absl::Status open_files(const Located& located, const DataRequest& request, OpenData& data) {
  const bool megatron = located.format == Format::kMegatron;
  data.format = megatron ? "megatron" : "llmc";
  data.vocabulary = request.vocabulary;
  data.end_of_document = request.end_of_document;
  if (request.tokenizer.kind() != v1::TokenizerSpec::KIND_UNSPECIFIED) {
    auto tokenizer = open_tokenizer(request.tokenizer);
    if (!tokenizer.ok()) return tokenizer.status();
    data.tokenizer = *std::move(tokenizer);
    if (data.vocabulary == 0) data.vocabulary = data.tokenizer->vocab_size();
    if (data.end_of_document < 0) data.end_of_document = data.tokenizer->end_of_document();
  }
  const int64_t limit = data.vocabulary > 0 ? data.vocabulary : kMostVocabulary;
  auto source = megatron ? data::open_megatron(located.paths, limit) : data::open_llmc_bin(located.paths, limit);
  if (!source.ok()) return source.status();
  data.source = *std::move(source);
  for (const std::string& path : located.paths) {
    count_file(path, data);
    if (megatron) count_file(index_of(path), data);
  }
  return absl::OkStatus();
}

absl::Status check_sum(const std::string& path, std::span<const std::byte> bytes, uint32_t told) {
  const uint32_t crc = crc32c(bytes);
  if (crc == told) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("data file ", path, ": its ", bytes.size(), " bytes have CRC32C ",
                                          crc_text(crc), ", but ", data::kDatasetFile, " says ", crc_text(told)));
}

absl::Status check_shard(const data::MegatronShard& shard, const data::ShardFiles& told,
                         const data::TokenizerRecord& tokenizer) {
  std::vector<int32_t> block(kBlockTokens);
  for (uint64_t at = 0; at < shard.tokens(); at += block.size()) {
    const auto part = std::span(block).first(std::min<uint64_t>(block.size(), shard.tokens() - at));
    if (auto status = shard.read(at, part, tokenizer.vocabulary); !status.ok()) return status;
  }
  uint64_t begin = 0;
  for (uint64_t document = 0; document < shard.documents(); ++document) {
    const uint64_t end = shard.document_end(document);
    int32_t last = -1;
    if (end > begin) {
      if (auto status = shard.read(end - 1, {&last, 1}, tokenizer.vocabulary); !status.ok()) return status;
    }
    if (last != tokenizer.end_of_document) {
      return absl::DataLossError(absl::StrCat(
          "data file ", shard.path(), ": document ", document, " (tokens ", begin, " to ", end, ") ends with ",
          last < 0 ? "nothing" : absl::StrCat("id ", last), ", not with end of document ", tokenizer.end_of_document));
    }
    begin = end;
  }
  if (auto status = check_sum(shard.path(), shard.bytes(), told.bin_crc32c); !status.ok()) return status;
  return check_sum(shard.index_path(), shard.index_bytes(), told.idx_crc32c);
}

absl::Status check_prepared(const std::string& directory) {
  const auto dataset = data::read_dataset(directory);
  if (!dataset.ok()) return dataset.status();
  const auto shards = data::open_shards(directory, *dataset);
  if (!shards.ok()) return shards.status();
  for (size_t i = 0; i < shards->size(); ++i) {
    auto status = check_shard((*shards)[i], dataset->shards[i], dataset->tokenizer);
    if (!status.ok()) return status;
  }
  return data::prepared_tokenizer({{directory, *dataset}}).status();
}

// The length at or below which `share` of the documents lie.
uint64_t percentile(const std::map<uint64_t, uint64_t>& lengths, uint64_t documents, double share) {
  uint64_t seen = 0;
  for (const auto& [length, count] : lengths) {
    seen += count;
    if (static_cast<double>(seen) >= share * static_cast<double>(documents)) return length;
  }
  return lengths.empty() ? 0 : lengths.rbegin()->first;
}

void measure_documents(const data::Documents& documents, DataStats& stats) {
  std::map<uint64_t, uint64_t> lengths;  // Documents of each length; far fewer than there are documents.
  uint64_t begin = 0;
  for (uint64_t document = 0; document < documents.count(); ++document) {
    const uint64_t end = documents.end(document);
    ++lengths[end - begin];
    begin = end;
  }
  stats.has_documents = true;
  stats.documents = documents.count();
  if (lengths.empty()) return;
  stats.shortest = lengths.begin()->first;
  stats.longest = lengths.rbegin()->first;
  stats.p10 = percentile(lengths, stats.documents, 0.1);
  stats.median = percentile(lengths, stats.documents, 0.5);
  stats.p90 = percentile(lengths, stats.documents, 0.9);
  stats.p99 = percentile(lengths, stats.documents, 0.99);
  for (const auto& [length, count] : lengths) stats.lengths[std::bit_floor(length)] += count;
}

}  // namespace

absl::StatusOr<OpenData> open_data(const DataRequest& request) {
  const auto located = locate_all(request.paths);
  if (!located.ok()) return located.status();
  OpenData data;
  const auto status =
      located->format == Format::kPrepared ? open_prepared(located->paths, data) : open_files(*located, request, data);
  if (!status.ok()) return status;
  auto documents = data.source->documents(data.end_of_document);
  if (documents.ok()) {
    data.documents = *std::move(documents);
  } else if (!absl::IsFailedPrecondition(documents.status())) {
    return documents.status();
  }
  return data;
}

absl::StatusOr<OpenData> check_data(const DataRequest& request) {
  const auto located = locate_all(request.paths);
  if (!located.ok()) return located.status();
  if (located->format == Format::kPrepared) {
    for (const std::string& directory : located->paths) {
      if (auto status = check_prepared(directory); !status.ok()) return status;
    }
    return open_data(request);
  }
  auto data = open_data(request);
  if (!data.ok()) return data.status();
  const int64_t limit = data->vocabulary > 0 ? data->vocabulary : kMostVocabulary;
  if (auto status = data->source->check_vocab(limit); !status.ok()) return status;
  return data;
}

absl::StatusOr<DataStats> measure(const OpenData& data, size_t most_frequent) {
  DataStats stats{.tokens = data.source->size()};
  if (data.documents != nullptr) measure_documents(*data.documents, stats);
  std::vector<uint64_t> counts;
  std::vector<int32_t> block(kBlockTokens);
  for (uint64_t at = 0; at < stats.tokens; at += block.size()) {
    const auto part = std::span(block).first(std::min<uint64_t>(block.size(), stats.tokens - at));
    if (auto status = data.source->read(at, part); !status.ok()) return status;
    const int32_t greatest = *std::max_element(part.begin(), part.end());
    if (static_cast<size_t>(greatest) >= counts.size()) counts.resize(static_cast<size_t>(greatest) + 1);
    for (const int32_t id : part) ++counts[static_cast<size_t>(id)];
  }
  for (size_t id = 0; id < counts.size(); ++id) {
    if (counts[id] > 0) stats.frequent.emplace_back(static_cast<int32_t>(id), counts[id]);
  }
  stats.distinct = stats.frequent.size();
  std::stable_sort(stats.frequent.begin(), stats.frequent.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  stats.frequent.resize(std::min(stats.frequent.size(), most_frequent));
  return stats;
}

uint64_t document_at(const data::Documents& documents, uint64_t position) {
  uint64_t low = 0, high = documents.count();
  while (low < high) {  // The first document that ends behind `position`.
    const uint64_t middle = low + (high - low) / 2;
    if (documents.end(middle) > position) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace telar::prepare
