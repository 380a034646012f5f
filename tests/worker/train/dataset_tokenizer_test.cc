#include "worker/train/dataset.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace telar::train {
namespace {

using testing::HasSubstr;

class DatasetTokenizerTest : public testing::Test {
 protected:
  DatasetTokenizerTest()
      : shard_(std::filesystem::path(testing::TempDir()) / ("telar-dataset-" + std::to_string(::getpid()) + ".bin")) {
    uint32_t header[256] = {20240520, 1, 400};  // An llm.c shard of 400 zeros.
    std::ofstream file(shard_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(header), sizeof(header));
    file << std::string(800, '\0');
    spec_.mutable_data()->add_train(shard_.string());
    spec_.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
    spec_.mutable_data()->set_eval_fraction(0.2);
    spec_.mutable_batch()->set_sequence_length(8);
    spec_.mutable_model()->set_vocab(706);
    spec_.mutable_tokenizer()->set_kind(v1::TokenizerSpec::HUGGING_FACE);
    spec_.mutable_tokenizer()->set_path(std::string(std::getenv("TELAR_SOURCE_DIR")) +
                                        "/tests/golden/tokenizers/gpt2.json");
  }
  ~DatasetTokenizerTest() override { std::filesystem::remove(shard_); }

  const std::filesystem::path shard_;
  v1::JobSpec spec_;
};

TEST_F(DatasetTokenizerTest, OpensTheTokenizerThatSpeaksForTheIds) {
  const auto set = open_dataset(spec_);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->tokenizer->vocab_size(), 706);
  spec_.mutable_tokenizer()->set_kind(v1::TokenizerSpec::NONE);
  EXPECT_EQ(open_dataset(spec_)->tokenizer, nullptr);
}

TEST_F(DatasetTokenizerTest, AModelThatIsTooSmallForTheTokenizerIsRefusedWithBothNumbers) {
  spec_.mutable_model()->set_vocab(705);
  EXPECT_THAT(std::string(open_dataset(spec_).status().message()),
              HasSubstr("model.vocab: 705 is smaller than the 706 of tokenizer " + spec_.tokenizer().path()));
}

TEST_F(DatasetTokenizerTest, ABrokenTokenizerIsTheDatasFault) {
  spec_.mutable_tokenizer()->set_path("/no/tokenizer.json");
  EXPECT_THAT(std::string(open_dataset(spec_).status().message()), HasSubstr("tokenizer file /no/tokenizer.json"));
}

}  // namespace
}  // namespace telar::train
