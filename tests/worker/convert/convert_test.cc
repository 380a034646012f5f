#include "worker/convert/convert.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/worker/convert/directories.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/convert/emit.h"
#include "worker/convert/huggingface.h"
#include "worker/data/prepared.h"

namespace telar::convert {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the helpers of this folder.
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class Convert : public ::testing::Test {
 protected:
  OpenedModel open(const std::string& path) {
    auto model = open_model(files_, path);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : OpenedModel();
  }
  Converted to(const std::string& from, const std::string& path, const ConvertOptions& options) {
    const auto converted = convert(files_, open(from), path, options);
    EXPECT_TRUE(converted.ok()) << converted.status();
    return converted.ok() ? *converted : Converted();
  }
  absl::Status refused(const std::string& from, const std::string& path, const ConvertOptions& options = {}) {
    return convert(files_, open(from), path, options).status();
  }
  std::string text(const std::string& path) {
    const std::string* bytes = files_.bytes(path);
    EXPECT_NE(bytes, nullptr) << path;
    return bytes == nullptr ? "" : *bytes;
  }
  checkpoint::MemoryFiles files_;
};

TEST_F(Convert, HuggingFaceThroughACheckpointAndBack) {
  Tensors ours;
  const Tensors gpt2 = gpt2_tensors(), qwen2 = qwen2_tensors(ours);
  int number = 0;
  for (const auto dtype : {backend::DType::kF32, backend::DType::kBF16, backend::DType::kF16}) {
    for (const bool is_gpt2 : {true, false}) {
      const std::string at = "/m/" + std::to_string(++number);
      const Tensors& tensors = is_gpt2 ? gpt2 : qwen2;
      write_directory(files_, at, is_gpt2 ? kGpt2Config : kQwen2Config, tensors, dtype);
      to(at, at + "-ours", {.to = Format::kTelar});
      const auto reader = checkpoint::CheckpointReader::open(files_, at + "-ours");
      ASSERT_TRUE(reader.ok()) << reader.status();
      EXPECT_TRUE((*reader)->verify().ok());
      expect_equal(**reader, is_gpt2 ? gpt2_logical(gpt2) : ours);
      const Converted back = to(at + "-ours", at + "-again", {});
      EXPECT_EQ(back.dtype, dtype);  // The one that it came with.
      EXPECT_EQ(contents(files_, at + "-again/model.safetensors"), contents(files_, at + "/model.safetensors"));
      EXPECT_EQ(open(at + "-again").model.SerializeAsString(), open(at).model.SerializeAsString());
      const auto file = checkpoint::SafetensorsFile::open(files_, at + "-again/model.safetensors");
      EXPECT_EQ((*file)->metadata().at("format"), "pt");
    }
  }
}

TEST_F(Convert, InSeveralFilesWithAnIndex) {
  const Tensors tensors = gpt2_tensors();
  write_directory(files_, "/m/gpt2", kGpt2Config, tensors);
  const Converted converted = to("/m/gpt2", "/m/out/", {.shard_bytes = 1000});
  EXPECT_GT(converted.files, 3u);
  const Json index = Json::parse(text("/m/out/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], converted.bytes);
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string file = index["weight_map"][name];
    EXPECT_EQ(contents(files_, "/m/out/" + file).at(name), encoded(tensor.values, backend::DType::kF32));
    bytes += tensor.values.size() * 4;
  }
  EXPECT_EQ(bytes, converted.bytes);
  EXPECT_EQ(index["weight_map"].size(), tensors.size());
  EXPECT_EQ(index["weight_map"]["transformer.wte.weight"],
            "model-00001-of-0000" + std::to_string(converted.files) + ".safetensors");
  expect_equal(*open("/m/out").weights, gpt2_logical(tensors));
}

TEST_F(Convert, ToSmallerTypesIsRoundedAndNeverOverflows) {
  Tensors tensors = gpt2_tensors();
  tensors["transformer.h.0.attn.c_attn.weight"].values[5] = 1.00390625f;  // Between 1 and the next of bf16.
  tensors["transformer.h.0.attn.c_attn.weight"].values[6] = 70000.0f;
  write_directory(files_, "/m/gpt2", kGpt2Config, tensors);
  const Converted converted = to("/m/gpt2", "/m/bf16", {.dtype = backend::DType::kBF16});
  EXPECT_EQ(converted.dtype, backend::DType::kBF16);
  const auto bytes = contents(files_, "/m/bf16/model.safetensors");
  for (const auto& [name, tensor] : tensors)
    EXPECT_EQ(bytes.at(name), encoded(tensor.values, backend::DType::kBF16)) << name;
  EXPECT_EQ(Json::parse(text("/m/bf16/config.json"))["torch_dtype"], "bfloat16");
  const auto status = refused("/m/gpt2", "/m/f16", {.dtype = backend::DType::kF16});
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("transformer.h.0.attn.c_attn.weight: a value is too large for f16"));
  EXPECT_TRUE(absl::IsNotFound(files_.list("/m/f16").status()));
  EXPECT_TRUE(absl::IsNotFound(files_.list("/m/.tmp-f16").status()));
}

// By the name that dataset.json has for it, among the first source's directories.
TEST_F(Convert, TheTokenizerOfPreparedDataGoesAlong) {
  write_directory(files_, "/m/gpt2", kGpt2Config, gpt2_tensors());
  to("/m/gpt2", "/m/ours", {.to = Format::kTelar});
  data::PreparedDataset dataset{.documents = 1, .tokens = 1, .text_bytes = 1};
  dataset.tokenizer = {.hash = "x", .vocabulary = 8, .end_of_document = 7};
  dataset.tokenizer.spec.set_kind(v1::TokenizerSpec::SENTENCEPIECE);
  dataset.tokenizer.spec.set_path("spoken.model");
  dataset.shards = {{"shard-00000", 1, 1, 2, 3, 4, 5}};
  ASSERT_TRUE(checkpoint::make_directories(files_, "/data/set").ok());
  ASSERT_TRUE(checkpoint::write_file(files_, "/data/set/dataset.json", data::dataset_text(dataset)).ok());
  ASSERT_TRUE(checkpoint::write_file(files_, "/data/set/spoken.model", "pieces").ok());
  auto manifest = checkpoint::parse_manifest(text("/m/ours/manifest.json"), "m").value();
  Json spec = Json::parse(manifest.spec_json);
  spec["data"] = {{"format", "PREPARED"}, {"sources", {{{"name", "a"}, {"train", {"/data/set"}}}}}};
  manifest.spec_json = spec.dump();
  ASSERT_TRUE(checkpoint::write_file(files_, "/m/ours/manifest.json", checkpoint::to_text(manifest).value()).ok());
  to("/m/ours", "/m/hf", {});
  EXPECT_EQ(text("/m/hf/tokenizer.model"), "pieces");
}

TEST_F(Convert, IdsOfTheSourceStay) {
  Json config = Json::parse(kGpt2Config);
  config["bos_token_id"] = 9;
  config["eos_token_id"] = {10, 3};
  write_directory(files_, "/m/gpt2", config.dump().c_str(), gpt2_tensors());
  to("/m/gpt2", "/m/again", {.to = Format::kHuggingFace});
  for (const char* name : {"/m/again/config.json", "/m/again/generation_config.json"}) {
    EXPECT_EQ(Json::parse(text(name))["bos_token_id"], 9) << name;
    EXPECT_EQ(Json::parse(text(name))["eos_token_id"], Json::parse("[10, 3]")) << name;
  }
}

TEST_F(Convert, ATokenizerGoesAlong) {
  write_directory(files_, "/m/gpt2", kGpt2Config, gpt2_tensors());
  EXPECT_THAT(to("/m/gpt2", "/m/without", {}).notes, ElementsAre(HasSubstr("no tokenizer")));
  ASSERT_TRUE(checkpoint::write_file(files_, "/m/gpt2/tokenizer.json", "{\"version\": 1}").ok());
  ASSERT_TRUE(checkpoint::write_file(files_, "/m/gpt2/tokenizer_config.json", "{\"a\": 1}").ok());
  ASSERT_TRUE(checkpoint::write_file(files_, "/m/gpt2/generation_config.json", "{\"eos_token_id\": 5}").ok());
  to("/m/gpt2", "/m/ours", {.to = Format::kTelar});
  to("/m/ours", "/m/known", {});  // By the path that the checkpoint's spec has.
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_EQ(text(std::string("/m/known/") + name), text(std::string("/m/gpt2/") + name));
  }
  ASSERT_TRUE(checkpoint::make_directories(files_, "/t").ok());
  ASSERT_TRUE(checkpoint::write_file(files_, "/t/mine.json", "{}").ok());
  to("/m/ours", "/m/given", {.tokenizer = "/t/mine.json"});
  EXPECT_EQ(text("/m/given/tokenizer.json"), "{}");
  EXPECT_EQ(files_.bytes("/m/given/tokenizer_config.json"), nullptr);
  EXPECT_TRUE(absl::IsNotFound(refused("/m/ours", "/m/x", {.tokenizer = "/t/none.json"})));
  ASSERT_TRUE(checkpoint::write_file(files_, "/t/mine.json", "ranks").ok());
  EXPECT_THAT(std::string(refused("/m/ours", "/m/x", {.tokenizer = "/t/mine.json"}).message()),
              HasSubstr("no tokenizer.json"));
  ASSERT_TRUE(files_.remove_file("/m/gpt2/tokenizer.json").ok());
  EXPECT_THAT(to("/m/ours", "/m/gone", {}).notes, ElementsAre(HasSubstr("/m/gpt2/tokenizer.json cannot be read")));
}

TEST_F(Convert, WhatIsThereStays) {
  write_directory(files_, "/m/gpt2", kGpt2Config, gpt2_tensors());
  EXPECT_TRUE(absl::IsAlreadyExists(refused("/m/gpt2", "/m/gpt2")));
  EXPECT_TRUE(absl::IsAlreadyExists(refused("/m/gpt2", "/m/gpt2/config.json", {.to = Format::kLlmc})));
  ASSERT_TRUE(files_.make_directory("/m/.tmp-out").ok());
  EXPECT_THAT(std::string(refused("/m/gpt2", "/m/out").message()), HasSubstr("another conversion writes it"));
  EXPECT_TRUE(absl::IsInvalidArgument(refused("/m/gpt2", "/m/step-00000005", {.to = Format::kTelar})));
  EXPECT_TRUE(
      absl::IsInvalidArgument(refused("/m/gpt2", "/m/b", {.to = Format::kTelar, .dtype = backend::DType::kBF16})));
}

// Whatever operation fails: all of it is there, or nothing, and the model that it came from as it was.
TEST_F(Convert, AFullDiskLeavesNothing) {
  write_directory(files_, "/m/gpt2", kGpt2Config, gpt2_tensors());
  for (const Format format : {Format::kTelar, Format::kHuggingFace, Format::kLlmc}) {
    const ConvertOptions options{.to = format, .shard_bytes = 3000};
    for (int64_t at = 0;; ++at) {
      const OpenedModel from = open("/m/gpt2");
      files_.plan(checkpoint::MemoryFiles::Fault::kDiskFull, at);
      const auto converted = convert(files_, from, "/m/out", options);
      files_.plan(checkpoint::MemoryFiles::Fault::kNone, 0);
      if (converted.ok()) {
        ASSERT_GT(at, 5);
        break;
      }
      EXPECT_THAT(files_.list("/m").value(), ElementsAre("gpt2")) << at;
    }
    if (format == Format::kLlmc) {
      ASSERT_TRUE(files_.remove_file("/m/out").ok());
    } else {
      expect_equal(*open("/m/out").weights, gpt2_logical([&] {
        Tensors tensors = gpt2_tensors();
        for (auto& [name, tensor] : tensors) {
          const auto bytes = contents(files_, "/m/gpt2/model.safetensors").at(name);
          std::memcpy(tensor.values.data(), bytes.data(), bytes.size());
        }
        return tensors;
      }()));
      ASSERT_TRUE(checkpoint::remove_with_files(files_, "/m/out").ok());
    }
  }
}

TEST_F(Convert, ItTellsHowFarItIsAndCanBeStopped) {
  write_directory(files_, "/m/gpt2", kGpt2Config, gpt2_tensors());
  std::vector<uint64_t> steps;
  uint64_t whole = 0;
  const auto converted = to("/m/gpt2", "/m/out", {.progress = [&](uint64_t done, uint64_t total) {
                              steps.push_back(done);
                              whole = total;
                              return absl::OkStatus();
                            }});
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(steps.back(), whole);
  EXPECT_EQ(whole, converted.bytes);
  int left = 3;
  const auto stopped = refused("/m/gpt2", "/m/stopped", {.progress = [&](uint64_t, uint64_t) {
                                 return --left > 0 ? absl::OkStatus() : absl::CancelledError("enough");
                               }});
  EXPECT_TRUE(absl::IsCancelled(stopped));
  EXPECT_THAT(files_.list("/m").value(), Each(Not(HasSubstr("stopped"))));
}

// Its table is larger than a chunk of a checkpoint.
TEST_F(Convert, LargeTensorsAreStoredInChunks) {
  constexpr int64_t kWide = 64, kRows = 270000;
  Tensors tensors;
  put(tensors, "transformer.wte.weight", {kRows, kWide});
  put(tensors, "transformer.wpe.weight", {2, kWide});
  put(tensors, "transformer.ln_f.weight", {kWide});
  put(tensors, "transformer.ln_f.bias", {kWide});
  for (const char* norm : {"ln_1", "ln_2"}) {
    put(tensors, std::string("transformer.h.0.") + norm + ".weight", {kWide});
    put(tensors, std::string("transformer.h.0.") + norm + ".bias", {kWide});
  }
  for (const auto& [name, out] :
       {std::pair{"attn.c_attn", 3 * kWide}, {"attn.c_proj", kWide}, {"mlp.c_fc", kWide}, {"mlp.c_proj", kWide}}) {
    put(tensors, std::string("transformer.h.0.") + name + ".weight", {kWide, out});
    put(tensors, std::string("transformer.h.0.") + name + ".bias", {out});
  }
  write_directory(files_, "/m/gpt2", R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2,
                                         "n_positions": 2, "n_inner": 64, "vocab_size": 270000})",
                  tensors, backend::DType::kBF16);
  to("/m/gpt2", "/m/ours", {.to = Format::kTelar});
  const auto reader = checkpoint::CheckpointReader::open(files_, "/m/ours");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->manifest().find("embed.weight", TensorKind::kMaster)->chunks.size(), 2u);
  to("/m/ours", "/m/again", {});
  EXPECT_TRUE(contents(files_, "/m/again/model.safetensors") == contents(files_, "/m/gpt2/model.safetensors"));
}

// However small the bands are that a tensor is made in.
TEST_F(Convert, BandsMakeNoDifference) {
  const Tensors tensors = gpt2_tensors();
  write_directory(files_, "/m/gpt2", kGpt2Config, tensors);
  const OpenedModel from = open("/m/gpt2");
  const auto made = [&](const StoredTensor& tensor, int64_t band) {
    std::vector<std::byte> bytes;
    const auto sink = [&](std::span<const std::byte> more) {
      bytes.insert(bytes.end(), more.begin(), more.end());
      return absl::OkStatus();
    };
    const auto status = Emitter(*from.weights, backend::DType::kF32, band).emit(tensor, sink);
    EXPECT_TRUE(status.ok()) << status;
    return bytes;
  };
  for (const int64_t band : {1, 7, 20, 50, 1000}) {
    for (const StoredTensor& tensor : huggingface_tensors(from.model)) {
      EXPECT_EQ(made(tensor, band), encoded(tensors.at(tensor.name).values, backend::DType::kF32)) << tensor.name;
    }
    for (const StoredTensor& tensor : llmc_tensors(from.model, 128))
      EXPECT_EQ(made(tensor, band), made(tensor, 100000)) << tensor.name;
  }
}

}  // namespace
}  // namespace telar::convert
