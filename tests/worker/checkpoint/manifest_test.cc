#include "worker/checkpoint/manifest.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/crc32c.h"

namespace telar::checkpoint {
namespace {

using testing::HasSubstr;

Manifest sample() {
  Manifest manifest{.job = "projects/p/jobs/j", .epoch = 3, .step = 1200, .consumed_samples = UINT64_MAX, .seed = 7};
  manifest.optimizer = {.applied_steps = 1190, .skipped_steps = 10, .good_steps = 77, .loss_scale = 0.1};
  manifest.eval_loss = 3.1415926535897931;
  manifest.sources = {{"books", {.rows = 9, .sequence_length = 16, .train_tokens = 160}}};
  manifest.spec_json = R"({"zeta":1,"alpha":{"x":[1,2.5,"\""]}})";
  manifest.layout = {.tp = 2, .pp = 1, .dp = 4, .zero = 1};
  manifest.files = {{"shard-00000.safetensors", 1000, 0xabc}, {"shard-00001.safetensors", uint64_t{1} << 40, 1}};
  TensorEntry split{.name = "wte", .kind = TensorKind::kMaster, .shape = {4, 6}};
  split.chunks = {{"shard-00000.safetensors", "a", {0, 0}, {4, 2}, 11},
                  {"shard-00001.safetensors", "b", {0, 2}, {1, 4}, 12},
                  {"shard-00001.safetensors", "c", {1, 2}, {3, 4}, 13}};
  TensorEntry scalar{.name = "s", .kind = TensorKind::kExpAvgSq, .dtype = backend::DType::kBF16};
  scalar.chunks = {{"shard-00000.safetensors", "d", {}, {}, 0xffffffff}};
  manifest.tensors = {split, scalar, {.name = "head", .kind = TensorKind::kMaster, .shape = {4, 6}, .tied_to = "wte"}};
  return manifest;
}

std::string seal_again(const std::string& text, const std::function<void(std::string&)>& edit) {
  std::string body = text.substr(0, text.rfind(",\n \"manifest_crc32c\""));
  edit(body);
  return body + ",\n \"manifest_crc32c\": \"" + crc_text(crc32c(body)) + "\"\n}\n";
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
}

TEST(Manifest, RoundTrips) {
  const Manifest manifest = sample();
  const auto text = to_text(manifest);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(parse_manifest(*text, "m").value(), manifest);
  Manifest plain;
  EXPECT_EQ(parse_manifest(to_text(plain).value(), "m").value(), plain);
}

TEST(Manifest, AnyFlippedBitAndAnyCutIsRefused) {
  const std::string text = to_text(sample()).value();
  for (size_t at = 0; at < text.size(); ++at) {
    std::string flipped = text;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    const auto status = parse_manifest(flipped, "dir/manifest.json").status();
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << at;
    ASSERT_THAT(std::string(status.message()), HasSubstr("dir/manifest.json"));
    ASSERT_FALSE(parse_manifest(std::string_view(text).substr(0, at), "m").ok());
  }
  EXPECT_FALSE(parse_manifest(text + " ", "m").ok());
}

TEST(Manifest, UnknownFieldsAreIgnoredAndNewerFormatsRefused) {
  const std::string text = to_text(sample()).value();
  const auto extended = seal_again(
      text, [](std::string& body) { replace(body, "\"seed\": 7", "\"colour\": {\"red\": [1]}, \"seed\": 7"); });
  EXPECT_EQ(parse_manifest(extended, "m").value(), sample());
  const auto newer = seal_again(text, [](std::string& body) {
    replace(body, "\"format_version\": 1", "\"format_version\": 2");
    replace(body, "\"tensors\"", "\"things\"");
  });
  const auto status = parse_manifest(newer, "m").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("format_version 2 is newer than the 1"));
}

TEST(Manifest, MalformedFieldsAreNamed) {
  const std::string text = to_text(sample()).value();
  const auto refused = [&](const std::string& from, const std::string& to) {
    const auto status =
        parse_manifest(seal_again(text, [&](std::string& body) { replace(body, from, to); }), "m").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    return std::string(status.message());
  };
  EXPECT_THAT(refused("\"step\": 1200", "\"step\": -1"), HasSubstr("step is -1"));
  EXPECT_THAT(refused("\"step\": 1200,", ""), HasSubstr("step"));
  EXPECT_THAT(refused("\"tp\": 2", "\"tp\": 4294967296"), HasSubstr("tp is 4294967296"));
  EXPECT_THAT(refused("00000abc", "xyz"), HasSubstr("crc32c is xyz"));
  EXPECT_THAT(refused("exp_avg_sq", "momentum"), HasSubstr("kind \"momentum\""));
  EXPECT_THAT(refused("\"good_steps\": 77", "\"good_steps\": 0.5"), HasSubstr("good_steps is 0.5"));
  EXPECT_THAT(refused("\"loss_scale\": 0.1", "\"loss_scale\": -2"), HasSubstr("loss_scale is -2"));
  EXPECT_THAT(refused("BF16", "F99"), HasSubstr("dtype F99"));
  EXPECT_THAT(refused("{\n \"format", "{{\n \"format"), HasSubstr("parse error"));
}

TEST(Manifest, BrokenRulesAreRefusedBothWays) {
  const auto refused = [&](const std::function<void(Manifest&)>& edit) {
    Manifest manifest = sample();
    edit(manifest);
    const auto status = to_text(manifest).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](Manifest& m) { m.spec_json = "[1]"; }), HasSubstr("spec"));
  EXPECT_THAT(refused([](Manifest& m) { m.spec_json = "{"; }), HasSubstr("spec"));
  EXPECT_THAT(refused([](Manifest& m) { m.files[1].name = "../x"; }), HasSubstr("\"../x\" is not a plain name"));
  EXPECT_THAT(refused([](Manifest& m) { m.files[1].name = m.files[0].name; }), HasSubstr("stands twice"));
  EXPECT_THAT(refused([](Manifest& m) { m.tensors.push_back(m.tensors[1]); }), HasSubstr("exp_avg_sq s stands twice"));
  EXPECT_THAT(refused([](Manifest& m) { m.files.pop_back(); }), HasSubstr("not listed"));
  EXPECT_THAT(refused([](Manifest& m) { m.tensors[0].chunks.pop_back(); }), HasSubstr("chunks of 48 bytes, but is 96"));
  EXPECT_THAT(refused([](Manifest& m) {
                m.tensors[0].chunks[2].offset = {0, 2};
              }),
              HasSubstr("chunks 1 and 2 overlap"));
  EXPECT_THAT(refused([](Manifest& m) { m.tensors[0].chunks[2].offset = {2, 2}; }), HasSubstr("outside its shape"));
  EXPECT_THAT(refused([](Manifest& m) { m.tensors[0].chunks[0].shape = {8}; }), HasSubstr("1 axes"));
  EXPECT_THAT(refused([](Manifest& m) { m.tensors[2].tied_to = "wpe"; }), HasSubstr("master head is tied to wpe"));
  EXPECT_THAT(refused([](Manifest& m) { m.tensors[2].shape = {6, 4}; }), HasSubstr("is tied to wte"));
  EXPECT_THAT(refused([](Manifest& m) { m.tensors[0].shape = {INT64_MAX, INT64_MAX}; }), HasSubstr("overflows"));
  EXPECT_THAT(refused([](Manifest& m) { m.job = "\xff"; }), HasSubstr("manifest"));
}

}  // namespace
}  // namespace telar::checkpoint
