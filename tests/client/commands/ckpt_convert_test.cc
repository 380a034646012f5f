#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "client/commands/exit_codes.h"
#include "client/spec/reader.h"
#include "tests/client/commands/command_test.h"

namespace telar::client {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CkptConvertTest : public CommandTest {
 protected:
  CkptConvertTest() {
    char name[] = "/tmp/telar_ckpt_convert_test_XXXXXX";
    root_ = mkdtemp(name);
  }
  ~CkptConvertTest() override { fs::remove_all(root_); }
  std::string at(const std::string& name) const { return (root_ / name).string(); }
  // An llm.c file of one layer of width 4, whose every value is its place.
  std::string llmc_file() {
    std::vector<int32_t> header(256);
    const int32_t start[] = {20240326, 3, 3, 5, 1, 2, 4, 128};
    std::copy(std::begin(start), std::end(start), header.begin());
    std::vector<float> values(128 * 4 + 3 * 4 + (12 * 4 * 4 + 13 * 4) + 2 * 4);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = i >= 5 * 4 && i < 128 * 4 ? 0.0f : static_cast<float>(i) / 16;
    std::ofstream file(root_ / "model.bin", std::ios::binary);
    file.write(reinterpret_cast<const char*>(header.data()), 1024);
    file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
    return at("model.bin");
  }
  std::string text(const std::string& name) const {
    std::stringstream all;
    all << std::ifstream(root_ / name, std::ios::binary).rdbuf();
    return all.str();
  }
  fs::path root_;
};

TEST_F(CkptConvertTest, ThereAndBack) {
  const std::string from = llmc_file();
  ASSERT_EQ(ckpt_convert(context, {.from = from, .to = at("ours")}), kOk) << err.str();
  EXPECT_EQ(out.str(), at("ours") + "\n");
  EXPECT_THAT(err.str(), HasSubstr("f32, 1.1 KiB in 1 file"));
  EXPECT_TRUE(fs::exists(root_ / "ours/manifest.json"));
  ASSERT_EQ(ckpt_convert(context, {.from = at("ours"), .to = at("hf"), .dtype = "bf16", .shard_bytes = 300}), kOk)
      << err.str();
  EXPECT_THAT(text("hf/config.json"),
              AllOf(HasSubstr("\"model_type\": \"gpt2\""), HasSubstr("\"torch_dtype\": \"bfloat16\"")));
  EXPECT_TRUE(fs::exists(root_ / "hf/model.safetensors.index.json"));
  EXPECT_THAT(err.str(), HasSubstr("note: no tokenizer"));
  ASSERT_EQ(ckpt_convert(context, {.from = at("ours"), .to = at("again.bin"), .to_format = "llmc"}), kOk) << err.str();
  EXPECT_TRUE(text("again.bin") == text("model.bin"));
}

TEST_F(CkptConvertTest, PrintsTheModelAsASpecHasIt) {
  ASSERT_EQ(ckpt_convert(context, {.from = llmc_file(), .print_model = true}), kOk) << err.str();
  EXPECT_THAT(out.str(), HasSubstr("model:\n  architecture: gpt2\n"));
  v1::JobSpec spec;
  EXPECT_TRUE(read_spec("model.yaml", out.str(), Format::kYaml, spec).problems.empty());
  EXPECT_EQ(spec.model().layers(), 1u);
  EXPECT_EQ(spec.model().vocab(), 5u);
  EXPECT_TRUE(spec.model().tied_head());
}

TEST_F(CkptConvertTest, WhatIsWrongIsOneLineAndTwo) {
  const std::string from = llmc_file();
  const auto error = [&](const CkptConvertOptions& options) {
    err.str("");
    EXPECT_EQ(ckpt_convert(context, options), kUsage);
    return err.str();
  };
  EXPECT_THAT(error({.from = at("none"), .to = at("x")}), HasSubstr(at("none")));
  EXPECT_THAT(error({.from = from}), HasSubstr("TO is missing"));
  EXPECT_THAT(error({.from = from, .to = from}), HasSubstr("is there already"));
  EXPECT_THAT(error({.from = from, .to = at("x"), .to_format = "onnx"}),
              HasSubstr("--to: got 'onnx', want hf, llmc or telar"));
  EXPECT_THAT(error({.from = from, .to = at("x"), .dtype = "int8"}), HasSubstr("--dtype: got 'int8'"));
  EXPECT_THAT(error({.from = from, .to = at("x"), .dtype = "bf16"}), HasSubstr("holds f32 only"));
  EXPECT_FALSE(fs::exists(root_ / "x"));
}

TEST_F(CkptConvertTest, CtrlCLeavesNothing) {
  const std::string from = llmc_file();
  interrupt.arm();
  interrupt.trigger();
  EXPECT_EQ(ckpt_convert(context, {.from = from, .to = at("x")}), 130);
  EXPECT_THAT(err.str(), HasSubstr("interrupted"));
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 1);
}

TEST_F(CkptConvertTest, ATerminalSeesProgress) {
  Context live{{}, {in, out, err, true}, clock, interrupt, nullptr};
  ASSERT_EQ(ckpt_convert(live, {.from = llmc_file(), .to = at("ours")}), kOk);
  EXPECT_THAT(err.str(), HasSubstr(" % "));
}

}  // namespace
}  // namespace telar::client
