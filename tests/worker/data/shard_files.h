// Small data files for tests.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/published_file.h"
#include "worker/data/prepared.h"
#include "worker/data/shard_writer.h"
#include "worker/data/token_source.h"

namespace telar::data {

inline std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Puts other bytes into a file.
inline void patch(const std::string& path, size_t offset, const std::string& bytes) {
  std::string all = contents(path);
  all.replace(offset, bytes.size(), bytes);
  std::ofstream(path, std::ios::binary) << all;
}

template <typename T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

inline std::vector<int32_t> read_all(const TokenSource& source) {
  std::vector<int32_t> tokens(source.size());
  const auto status = source.read(0, tokens);
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

// NAME.bin and NAME.idx.
inline ShardFiles write_megatron(const std::string& directory, const std::string& name, int id_bytes,
                                 const std::vector<std::vector<int32_t>>& documents) {
  auto writer = create_megatron_shard(directory, name, id_bytes).value();
  for (const auto& document : documents) EXPECT_TRUE(writer->append(document).ok());
  return writer->publish().value();
}

// A prepared dataset of byte tokens, a shard an entry; each document has to end with 256.
inline PreparedDataset write_prepared(const std::string& directory,
                                      const std::vector<std::vector<std::vector<int32_t>>>& shards) {
  std::filesystem::create_directories(directory);
  PreparedDataset dataset;
  dataset.tokenizer.spec.set_kind(v1::TokenizerSpec::BYTE);
  dataset.tokenizer.hash = "byte";
  dataset.tokenizer.vocabulary = 257;
  dataset.tokenizer.end_of_document = 256;
  for (const auto& documents : shards) {
    const std::string name = "shard-0000" + std::to_string(dataset.shards.size());
    dataset.shards.push_back(write_megatron(directory, name, 2, documents));
    dataset.documents += dataset.shards.back().documents;
    dataset.tokens += dataset.shards.back().tokens;
  }
  dataset.text_bytes = dataset.tokens - dataset.documents;
  std::ofstream(directory + "/" + kDatasetFile) << dataset_text(dataset);
  return dataset;
}

}  // namespace telar::data
