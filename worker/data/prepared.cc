#include "worker/data/prepared.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/json_fields.h"
#include "worker/data/mapped_file.h"
#include "worker/data/sha256.h"
#include "worker/data/sharded_source.h"

namespace telar::data {
namespace {

using Json = nlohmann::ordered_json;

int32_t id(const Json& object, const char* key) {
  const uint64_t value = count_field(object, key);
  if (value > INT32_MAX) throw MalformedField(absl::StrCat(key, " is ", value, ", more than ", INT32_MAX));
  return static_cast<int32_t>(value);
}

// A name inside the directory.
std::string plain_name(const Json& object, const char* key) {
  auto name = object.at(key).get<std::string>();
  if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos) {
    throw MalformedField(absl::StrCat(key, " is '", name, "', not a name in this directory"));
  }
  return name;
}

std::string kind_name(v1::TokenizerSpec::Kind kind) {
  return absl::AsciiStrToLower(v1::TokenizerSpec::Kind_Name(kind));
}

Json to_json(const TokenizerRecord& record) {
  Json json = {{"kind", kind_name(record.spec.kind())}, {"hash", record.hash}};
  if (!record.spec.path().empty()) json["file"] = record.spec.path();
  json["vocabulary"] = record.vocabulary;
  json["end_of_document"] = record.end_of_document;
  if (!record.spec.end_of_document().empty()) json["end_of_document_text"] = record.spec.end_of_document();
  if (!record.spec.pattern().empty()) json["pattern"] = record.spec.pattern();
  const std::map<std::string, uint32_t> special(record.spec.special_tokens().begin(),
                                                record.spec.special_tokens().end());
  if (!special.empty()) json["special_tokens"] = special;
  return json;
}

TokenizerRecord tokenizer_from(const Json& json) {
  TokenizerRecord record;
  const auto kind = json.at("kind").get<std::string>();
  v1::TokenizerSpec::Kind known;
  if (!v1::TokenizerSpec::Kind_Parse(absl::AsciiStrToUpper(kind), &known) || known == v1::TokenizerSpec::NONE ||
      known == v1::TokenizerSpec::KIND_UNSPECIFIED) {
    throw MalformedField(absl::StrCat("tokenizer.kind is '", kind, "', which is not known"));
  }
  record.spec.set_kind(known);
  record.hash = json.at("hash").get<std::string>();
  if (json.contains("file")) record.spec.set_path(plain_name(json, "file"));
  record.vocabulary = id(json, "vocabulary");
  record.end_of_document = id(json, "end_of_document");
  if (record.end_of_document >= record.vocabulary) {
    throw MalformedField(absl::StrCat("end_of_document is ", record.end_of_document, ", not below the vocabulary of ",
                                      record.vocabulary));
  }
  record.spec.set_end_of_document(json.value("end_of_document_text", ""));
  record.spec.set_pattern(json.value("pattern", ""));
  if (json.contains("special_tokens")) {
    for (const auto& [text, value] : json.at("special_tokens").get<std::map<std::string, uint32_t>>()) {
      (*record.spec.mutable_special_tokens())[text] = value;
    }
  }
  return record;
}

PreparedDataset dataset_from(const Json& json) {
  PreparedDataset dataset;
  dataset.tokenizer = tokenizer_from(json.at("tokenizer"));
  dataset.documents = count_field(json, "documents");
  dataset.tokens = count_field(json, "tokens");
  dataset.text_bytes = count_field(json, "text_bytes");
  uint64_t documents = 0, tokens = 0;
  for (const Json& one : json.at("shards")) {
    dataset.shards.push_back({plain_name(one, "name"), count_field(one, "documents"), count_field(one, "tokens"),
                              count_field(one, "bin_bytes"), count_field(one, "idx_bytes"),
                              crc_field(one, "bin_crc32c"), crc_field(one, "idx_crc32c")});
    documents += dataset.shards.back().documents;
    tokens += dataset.shards.back().tokens;
  }
  if (dataset.shards.empty()) throw MalformedField("shards is empty");
  if (documents != dataset.documents || tokens != dataset.tokens) {
    throw MalformedField(absl::StrCat("the shards have ", documents, " documents and ", tokens,
                                      " tokens together, not ", dataset.documents, " and ", dataset.tokens));
  }
  return dataset;
}

}  // namespace

absl::StatusOr<std::string> tokenizer_hash(const v1::TokenizerSpec& spec) {
  const std::string kind = kind_name(spec.kind());
  if (spec.path().empty()) return kind;
  const auto file = MappedFile::open(spec.path());
  if (!file.ok()) return file.status();
  std::string options;
  if (!spec.pattern().empty()) absl::StrAppend(&options, "\npattern ", spec.pattern());
  const std::map<std::string, uint32_t> special(spec.special_tokens().begin(), spec.special_tokens().end());
  for (const auto& [text, value] : special) absl::StrAppend(&options, "\nspecial ", value, " ", text);
  const auto bytes = file->bytes();
  return absl::StrCat(kind, ":", sha256({{reinterpret_cast<const char*>(bytes.data()), bytes.size()}, options}));
}

std::string dataset_text(const PreparedDataset& dataset) {
  Json json = {{"format_version", kDatasetVersion},
               {"tokenizer", to_json(dataset.tokenizer)},
               {"id_bytes", id_bytes_of(dataset.tokenizer.vocabulary)},
               {"documents", dataset.documents},
               {"tokens", dataset.tokens},
               {"text_bytes", dataset.text_bytes},
               {"shards", Json::array()}};
  for (const ShardFiles& shard : dataset.shards) {
    json["shards"].push_back(Json{{"name", shard.name},
                                  {"documents", shard.documents},
                                  {"tokens", shard.tokens},
                                  {"bin_bytes", shard.bin_bytes},
                                  {"bin_crc32c", crc_text(shard.bin_crc32c)},
                                  {"idx_bytes", shard.idx_bytes},
                                  {"idx_crc32c", crc_text(shard.idx_crc32c)}});
  }
  return json.dump(1) + "\n";
}

absl::StatusOr<PreparedDataset> read_dataset(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kDatasetFile);
  const auto file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  const auto bytes = file->bytes();
  return parse_dataset({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

absl::StatusOr<PreparedDataset> parse_dataset(std::string_view text, const std::string& path) {
  try {
    const Json json = Json::parse(text);
    const uint64_t version = count_field(json, "format_version");
    if (version != kDatasetVersion) {
      throw MalformedField(absl::StrCat("format_version is ", version, "; this program reads ", kDatasetVersion));
    }
    return dataset_from(json);
  } catch (const std::exception& error) {  // MalformedField, or one of the JSON library's.
    return absl::InvalidArgumentError(absl::StrCat("data file ", path, ": ", error.what()));
  }
}

v1::TokenizerSpec tokenizer_spec(const std::string& directory, const TokenizerRecord& record) {
  v1::TokenizerSpec spec = record.spec;
  if (!spec.path().empty()) spec.set_path(absl::StrCat(directory, "/", spec.path()));
  return spec;
}

absl::StatusOr<std::vector<MegatronShard>> open_shards(const std::string& directory, const PreparedDataset& dataset) {
  std::vector<MegatronShard> shards;
  for (const ShardFiles& told : dataset.shards) {
    auto shard = MegatronShard::open(absl::StrCat(directory, "/", told.name, ".bin"));
    if (absl::IsNotFound(shard.status())) {  // The dataset is there; a part of it is not.
      return absl::DataLossError(absl::StrCat(shard.status().message(), ", but ", kDatasetFile, " names it"));
    }
    if (!shard.ok()) return shard.status();
    const std::pair<uint64_t, uint64_t> pairs[] = {{shard->bytes().size(), told.bin_bytes},
                                                   {shard->index_bytes().size(), told.idx_bytes},
                                                   {shard->tokens(), told.tokens},
                                                   {shard->documents(), told.documents}};
    const char* const names[] = {"bytes", "bytes of index", "tokens", "documents"};
    for (size_t i = 0; i < std::size(pairs); ++i) {
      if (pairs[i].first == pairs[i].second) continue;
      return absl::DataLossError(absl::StrCat("data file ", shard->path(), ": ", pairs[i].first, " ", names[i],
                                              ", but ", kDatasetFile, " says ", pairs[i].second));
    }
    shards.push_back(*std::move(shard));
  }
  return shards;
}

absl::StatusOr<std::vector<PreparedDirectory>> read_prepared(const std::vector<std::string>& paths) {
  auto directories = expand_paths(paths);
  if (!directories.ok()) return directories.status();
  std::vector<PreparedDirectory> all;
  for (std::string& directory : *directories) {
    const auto known = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.path == directory; });
    if (known != all.end()) {
      all.push_back(*known);
      continue;
    }
    auto dataset = read_dataset(directory);
    if (!dataset.ok()) return dataset.status();
    all.push_back({std::move(directory), *std::move(dataset)});
    const TokenizerRecord &first = all.front().dataset.tokenizer, &now = all.back().dataset.tokenizer;
    if (first.hash == now.hash && first.end_of_document == now.end_of_document) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "dataset ", all.back().path, ": its tokenizer is ", now.hash, " with end of document ", now.end_of_document,
        ", but that of ", all.front().path, " is ", first.hash, " with ", first.end_of_document));
  }
  return all;
}

absl::StatusOr<std::unique_ptr<TokenSource>> open_prepared(const std::vector<PreparedDirectory>& directories,
                                                           int64_t vocab) {
  std::vector<MegatronShard> all;
  for (const auto& [directory, dataset] : directories) {
    if (vocab < dataset.tokenizer.vocabulary || vocab > INT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat("dataset ", directory, ": a vocabulary of ",
                                                     dataset.tokenizer.vocabulary,
                                                     ", which does not fit into the model's of ", vocab));
    }
    auto shards = open_shards(directory, dataset);
    if (!shards.ok()) return shards.status();
    for (MegatronShard& shard : *shards) all.push_back(std::move(shard));
  }
  return make_sharded_source(std::move(all), vocab);
}

absl::StatusOr<v1::TokenizerSpec> prepared_tokenizer(const std::vector<PreparedDirectory>& directories) {
  const auto& [directory, dataset] = directories.front();
  v1::TokenizerSpec spec = tokenizer_spec(directory, dataset.tokenizer);
  const auto hash = tokenizer_hash(spec);
  if (!hash.ok()) return hash.status();
  if (*hash == dataset.tokenizer.hash) return spec;
  return absl::DataLossError(absl::StrCat("data file ", spec.path(), ": the tokenizer is now ", *hash, ", but ",
                                          kDatasetFile, " says ", dataset.tokenizer.hash));
}

absl::Status check_tokenizer(const std::vector<PreparedDirectory>& directories, const v1::TokenizerSpec& spec) {
  if (spec.kind() == v1::TokenizerSpec::KIND_UNSPECIFIED || spec.kind() == v1::TokenizerSpec::NONE) {
    return absl::OkStatus();
  }
  const auto hash = tokenizer_hash(spec);
  if (!hash.ok()) return hash.status();
  const std::string& made_with = directories.front().dataset.tokenizer.hash;
  if (*hash == made_with) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("dataset ", directories.front().path, ": made with tokenizer ",
                                                 made_with, ", but the job's is ", *hash));
}

}  // namespace telar::data
