#include "worker/convert/llmc.h"

#include <gmock/gmock.h>

#include "tests/worker/convert/directories.h"
#include "worker/convert/convert.h"

namespace telar::convert {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the helpers of this folder.
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int32_t kPadded = 128;

// As llm.c writes it; our own tensors go to `ours`.
std::string file_of(int32_t version, Tensors& ours) {
  std::vector<int32_t> header(256);
  const int32_t start[] = {20240326, version, kPositions, kVocab, kLayers, 2, kHidden, kPadded};
  std::copy(std::begin(start), std::end(start), header.begin());
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  const auto append = [&](const std::vector<float>& values) {
    const auto stored = encoded(values, version == 3 ? backend::DType::kF32 : backend::DType::kBF16);
    bytes.append(reinterpret_cast<const char*>(stored.data()), stored.size());
  };
  const auto one = [&](const std::string& name, std::vector<int64_t> shape) {
    put(ours, name, std::move(shape));
    append(ours[name].values);
  };
  const auto layers = [&](const std::vector<std::string>& names, const std::vector<int64_t>& shape) {
    for (int64_t i = 0; i < kLayers; ++i) {
      for (const std::string& name : names) one("layers." + std::to_string(i) + "." + name, shape);
    }
  };
  one("embed.weight", {kVocab, kHidden});
  append(std::vector<float>((kPadded - kVocab) * kHidden, 0.0f));
  one("positions.weight", {kPositions, kHidden});
  layers({"attn_norm.weight"}, {kHidden});
  layers({"attn_norm.bias"}, {kHidden});
  layers({"q.weight", "k.weight", "v.weight"}, {kHidden, kHidden});
  layers({"q.bias", "k.bias", "v.bias"}, {kHidden});
  layers({"o.weight"}, {kHidden, kHidden});
  layers({"o.bias"}, {kHidden});
  layers({"mlp_norm.weight"}, {kHidden});
  layers({"mlp_norm.bias"}, {kHidden});
  layers({"up.weight"}, {kFfn, kHidden});
  layers({"up.bias"}, {kFfn});
  layers({"down.weight"}, {kHidden, kFfn});
  layers({"down.bias"}, {kHidden});
  one("final_norm.weight", {kHidden});
  one("final_norm.bias", {kHidden});
  return bytes;
}

class Llmc : public ::testing::Test {
 protected:
  Llmc() { EXPECT_TRUE(checkpoint::make_directories(files_, "/m").ok()); }
  void write(const std::string& bytes) { ASSERT_TRUE(checkpoint::write_file(files_, "/m/gpt2.bin", bytes).ok()); }
  std::string refusal(const std::string& bytes) {
    write(bytes);
    const auto model = open_llmc(files_, "/m/gpt2.bin");
    return model.ok() ? "it was opened" : std::string(model.status().message());
  }
  checkpoint::MemoryFiles files_;
};

TEST_F(Llmc, IsRead) {
  for (const int32_t version : {3, 5}) {
    Tensors ours;
    write(file_of(version, ours));
    const auto model = open_llmc(files_, "/m/gpt2.bin");
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->dtype(), version == 3 ? backend::DType::kF32 : backend::DType::kBF16);
    EXPECT_EQ((*model)->model().max_positions(), 5u);
    EXPECT_EQ((*model)->model().head_dim(), 3u);
    EXPECT_EQ((*model)->model().ffn(), 24u);
    expect_equal(**model, ours);
  }
}

TEST_F(Llmc, ThroughACheckpointAndBackEveryByteIsTheSame) {
  for (const int32_t version : {3, 5}) {
    Tensors ours;
    const std::string bytes = file_of(version, ours);
    const std::string name = "/m/" + std::to_string(version);
    ASSERT_TRUE(checkpoint::write_file(files_, name + ".bin", bytes).ok());
    const auto from = open_model(files_, name + ".bin");
    ASSERT_TRUE(from.ok()) << from.status();
    const auto there = convert(files_, *from, name + "-ours", {.to = Format::kTelar});
    ASSERT_TRUE(there.ok()) << there.status();
    const auto checkpoint = open_model(files_, name + "-ours");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ(checkpoint->format, Format::kTelar);
    expect_equal(*checkpoint->weights, ours);
    const auto back = convert(files_, *checkpoint, name + "-again.bin", {.to = Format::kLlmc});
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*files_.bytes(name + "-again.bin") == bytes) << version;
    EXPECT_EQ(back->bytes, bytes.size() - 1024);
  }
}

TEST_F(Llmc, WhatIsOddIsNamedWithItsByte) {
  Tensors ours;
  const std::string good = file_of(3, ours);
  const auto with = [&](size_t at, int32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + 4 * at, &value, 4);
    return refusal(bytes);
  };
  EXPECT_THAT(with(0, 20240327), AllOf(HasSubstr("/m/gpt2.bin"), HasSubstr("magic number 20240327 at byte 0")));
  EXPECT_THAT(with(1, 1), HasSubstr("version 1 at byte 4, want 3 (fp32) or 5 (bf16)"));
  EXPECT_THAT(with(2, 0), HasSubstr("maxT = 0 at byte 8"));
  EXPECT_THAT(with(4, -1), HasSubstr("L = -1 at byte 16"));
  EXPECT_THAT(with(5, 4), HasSubstr("C = 6 at byte 24 is not divisible by NH = 4"));
  EXPECT_THAT(with(7, 10), HasSubstr("Vp = 10 at byte 28 is less than V = 11"));
  EXPECT_THAT(with(6, INT32_MAX - 1), HasSubstr("far less than"));
  EXPECT_THAT(with(4, INT32_MAX), HasSubstr("far less than"));
  EXPECT_THAT(with(1, 5), HasSubstr("goes on behind byte"));
  EXPECT_THAT(refusal(good.substr(0, 1000)), HasSubstr("ends at byte 1000, inside its header"));
  EXPECT_THAT(refusal(good.substr(0, good.size() - 1)),
              AllOf(HasSubstr("inside lnfb, which is bytes ["), HasSubstr(std::to_string(good.size()) + ")")));
  EXPECT_THAT(refusal(good.substr(0, good.size() - 30)), HasSubstr("inside lnfw"));
  EXPECT_THAT(refusal(good + "x"), HasSubstr("goes on behind byte " + std::to_string(good.size())));
}

TEST_F(Llmc, AModelThatItCannotHold) {
  Tensors ours;
  write_directory(files_, "/m/hf", kQwen2Config, qwen2_tensors(ours));
  const auto from = open_model(files_, "/m/hf");
  ASSERT_TRUE(from.ok()) << from.status();
  const auto converted = convert(files_, *from, "/m/out.bin", {.to = Format::kLlmc, .dtype = backend::DType::kF16});
  EXPECT_TRUE(absl::IsFailedPrecondition(converted.status()));
  EXPECT_THAT(std::string(converted.status().message()),
              AllOf(HasSubstr("model.architecture must be gpt2"),
                    HasSubstr("model.ffn = 10, want 4 * model.hidden = 24"), HasSubstr("model.tied_head must be true"),
                    HasSubstr("model.norm_epsilon = 1e-06, want 1e-05"), HasSubstr("dtype f16")));
  EXPECT_EQ(files_.bytes("/m/out.bin"), nullptr);
}

}  // namespace
}  // namespace telar::convert
