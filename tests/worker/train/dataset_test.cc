#include "worker/train/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/data/shard_files.h"
#include "tests/worker/data/temp_dir.h"

namespace telar::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DatasetTest : public testing::Test {
 protected:
  DatasetTest() {
    spec_.mutable_model()->set_vocab(257);
    spec_.mutable_batch()->set_sequence_length(4);
    spec_.mutable_data()->set_eval_fraction(0.2);
  }
  void use(v1::DataSpec::Format format, const std::string& path) {
    spec_.mutable_data()->set_format(format);
    spec_.mutable_data()->add_train(path);
  }
  std::string refused() const { return std::string(open_dataset(spec_).status().message()); }

  static std::vector<int32_t> document(int32_t of) {
    std::vector<int32_t> ids(20, of);
    ids.push_back(256);
    return ids;
  }
  data::TempDir dir_;
  v1::JobSpec spec_;
};

TEST_F(DatasetTest, PreparedDataBringsItsTokenizer) {
  data::write_prepared(dir_.file("set"), {{document('a')}, {document('b')}});
  use(v1::DataSpec::PREPARED, dir_.file("set"));
  const auto set = open_dataset(spec_);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->train_tokens + set->eval_tokens, 42u);
  ASSERT_NE(set->tokenizer, nullptr);
  EXPECT_EQ(set->tokenizer->end_of_document(), 256);
  spec_.mutable_tokenizer()->set_kind(v1::TokenizerSpec::BYTE);
  EXPECT_TRUE(open_dataset(spec_).ok());
  spec_.mutable_tokenizer()->set_kind(v1::TokenizerSpec::NONE);
  EXPECT_EQ(open_dataset(spec_)->tokenizer, nullptr);
}

TEST_F(DatasetTest, PreparedDataOfAnotherTokenizerOrVocabularyIsRefused) {
  data::write_prepared(dir_.file("set"), {{document('a'), document('b')}});
  use(v1::DataSpec::PREPARED, dir_.file("set"));
  spec_.mutable_tokenizer()->set_kind(v1::TokenizerSpec::HUGGING_FACE);
  spec_.mutable_tokenizer()->set_path(dir_.write("tokenizer.json", "{}"));
  EXPECT_THAT(refused(), AllOf(HasSubstr("made with tokenizer byte, but the job's is hugging_face:44136fa3")));
  spec_.clear_tokenizer();
  spec_.mutable_model()->set_vocab(256);
  EXPECT_THAT(refused(), HasSubstr("model.vocab: 256 is smaller than the 257 of tokenizer byte"));
}

TEST_F(DatasetTest, MegatronsFiles) {
  data::write_megatron(dir_.file(""), "x", 2, {document('a'), document('b')});
  use(v1::DataSpec::MEGATRON, dir_.file("x.bin"));
  const auto set = open_dataset(spec_);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->opened.at(0).tokens->size(), 42u);
  EXPECT_EQ(set->tokenizer, nullptr);
}

}  // namespace
}  // namespace telar::train
