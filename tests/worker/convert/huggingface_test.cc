#include "worker/convert/huggingface.h"

#include <gmock/gmock.h>

#include "tests/worker/convert/directories.h"
#include "worker/checkpoint/pieces.h"
#include "worker/convert/open_model.h"
#include "worker/model/parameters.h"

namespace telar::convert {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the helpers of this folder.
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kPath = "/models/one";

class HuggingFace : public ::testing::Test {
 protected:
  std::unique_ptr<ForeignModel> open() {
    auto model = open_huggingface(files_, kPath);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : nullptr;
  }
  std::string refusal() {
    const auto model = open_huggingface(files_, kPath);
    return model.ok() ? "it was opened" : std::string(model.status().message());
  }
  CountingFiles files_;
};

TEST_F(HuggingFace, Gpt2IsTurnedAndSplit) {
  for (const auto dtype : {backend::DType::kF32, backend::DType::kBF16, backend::DType::kF16}) {
    const Tensors stored = gpt2_tensors();
    write_directory(files_, kPath, kGpt2Config, stored, dtype);
    const auto model = open();
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(model->dtype(), dtype);
    expect_equal(*model, gpt2_logical(stored));
  }
}

TEST_F(HuggingFace, NamesMayLackThePrefixAndMasksAreSkipped) {
  Tensors stored = gpt2_tensors("");
  const Tensors ours = gpt2_logical(stored, "");
  put(stored, "h.0.attn.bias", {1, 1, 5, 5});
  put(stored, "h.1.attn.masked_bias", {});
  write_directory(files_, kPath, kGpt2Config, stored);
  const auto model = open();
  ASSERT_NE(model, nullptr);
  expect_equal(*model, ours);
}

TEST_F(HuggingFace, Qwen2InShardsWithItsOwnHead) {
  Tensors ours;
  Tensors stored = qwen2_tensors(ours);
  put(stored, "model.layers.0.self_attn.rotary_emb.inv_freq", {2});
  write_sharded(files_, kPath, kQwen2Config, stored, 3);
  const auto model = open();
  ASSERT_NE(model, nullptr);
  EXPECT_TRUE(model->model().qkv_bias());
  EXPECT_FALSE(model->model().tied_head());
  expect_equal(*model, ours);
  float one = 0;
  const Box box{{0}, {1}};
  EXPECT_TRUE(
      absl::IsNotFound(model->read_values("final_norm.bias", TensorKind::kMaster, std::span(&box, 1), {&one, 1})));
  EXPECT_TRUE(
      absl::IsNotFound(model->read_values("final_norm.weight", TensorKind::kExpAvg, std::span(&box, 1), {&one, 1})));
  const Box outside{{6}, {1}};
  EXPECT_TRUE(absl::IsInvalidArgument(
      model->read_values("final_norm.weight", TensorKind::kMaster, std::span(&outside, 1), {&one, 1})));
}

TEST_F(HuggingFace, ATiedHeadMayBeStoredIfItIsTheSame) {
  Tensors stored = gpt2_tensors();
  stored["lm_head.weight"] = stored["transformer.wte.weight"];
  write_directory(files_, kPath, kGpt2Config, stored);
  ASSERT_NE(open(), nullptr);
  stored["lm_head.weight"].values.back() += 1;
  write_directory(files_, kPath, kGpt2Config, stored);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("lm_head.weight"), HasSubstr("differs from the embeddings")));
}

// What a rank of any layout holds, each byte read once.
TEST_F(HuggingFace, RanksReadWhatTheyHold) {
  Tensors ours, theirs = qwen2_tensors(ours);
  const Tensors gpt2 = gpt2_tensors();
  for (const bool is_gpt2 : {true, false}) {
    write_directory(files_, kPath, is_gpt2 ? kGpt2Config : kQwen2Config, is_gpt2 ? gpt2 : theirs);
    const Tensors expected = is_gpt2 ? gpt2_logical(gpt2) : ours;
    const auto model = open();
    ASSERT_NE(model, nullptr);
    for (const int tensor_size : {1, 2}) {
      for (const int shards : {1, 3}) {
        for (int rank = 0; rank < tensor_size * shards; ++rank) {
          const parallel::FlatLayout layout(
              model::parameter_groups(model->model(), {.tensor_size = tensor_size, .tensor_rank = rank % tensor_size}),
              100, {shards, rank / tensor_size});
          const auto pieces = layout.pieces(shards == 1);
          uint64_t held = 0, rows = 0;
          files_.reset();
          const auto check = [&](const parallel::Piece& piece, std::span<const float> values) {
            const parallel::Parameter& parameter = layout.groups()[piece.group].parts[piece.part];
            const Tensor& whole = expected.at(parameter.name);
            size_t i = 0;
            for (const Box& box : parallel::boxes(parameter, piece.slice.first, piece.slice.count)) {
              for (int64_t r = 0; r < box.extent[0]; ++r) {
                for (int64_t c = 0; c < (box.extent.size() == 2 ? box.extent[1] : 1); ++c) {
                  const int64_t row = box.offset[0] + r, column = box.extent.size() == 2 ? box.offset[1] + c : 0;
                  const int64_t columns = box.extent.size() == 2 ? whole.shape[1] : 1;
                  EXPECT_EQ(values[i++], whole.values[static_cast<size_t>(row * columns + column)]) << parameter.name;
                }
              }
            }
            held += values.size_bytes();
            rows += 2 * sizeof(float) * static_cast<uint64_t>(whole.shape.back());
            return absl::OkStatus();
          };
          const auto status = checkpoint::load_pieces(*model, layout, pieces, TensorKind::kMaster, check);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_GT(held, 0u);
          // A shard that begins or ends in the middle of a row reads the rest of it, too.
          EXPECT_LE(files_.bytes_read(), shards == 1 ? held : held + rows);
        }
      }
    }
  }
}

// Rectangles of any kind, larger than the pieces that they are read in.
TEST_F(HuggingFace, BoxesOfLargeTensors) {
  Tensors stored;
  constexpr int64_t kWide = 1500;
  put(stored, "transformer.wte.weight", {3, kWide});
  put(stored, "transformer.wpe.weight", {2, kWide});
  for (const char* norm : {"h.0.ln_1", "h.0.ln_2", "ln_f"}) {
    put(stored, std::string("transformer.") + norm + ".weight", {kWide});
    put(stored, std::string("transformer.") + norm + ".bias", {kWide});
  }
  const std::string h = "transformer.h.0.";
  for (const auto& [name, in, out] : {std::tuple{"attn.c_attn", kWide, 3 * kWide},
                                      {"attn.c_proj", kWide, kWide},
                                      {"mlp.c_fc", kWide, int64_t{100}},
                                      {"mlp.c_proj", int64_t{100}, kWide}}) {
    put(stored, h + name + ".weight", {in, out});
    put(stored, h + name + ".bias", {out});
  }
  write_directory(files_, kPath, R"({"model_type": "gpt2", "n_embd": 1500, "n_layer": 1, "n_head": 2, "n_positions": 2,
                                     "n_inner": 100, "vocab_size": 3})",
                  stored);
  const auto model = open();
  ASSERT_NE(model, nullptr);
  const Tensor whole = turned(stored.at(h + "attn.c_attn.weight"), kWide, kWide);
  std::mt19937_64 random(3);
  for (int round = 0; round < 6; ++round) {
    std::vector<Box> boxes;
    std::vector<float> expected;
    for (int i = 0; i < 2; ++i) {
      Box box{{0, 0}, {0, 0}};
      for (int axis : {0, 1}) {
        box.offset[axis] = static_cast<int64_t>(random() % kWide);
        box.extent[axis] = static_cast<int64_t>(random() % static_cast<uint64_t>(kWide - box.offset[axis])) + 1;
      }
      for (int64_t r = 0; r < box.extent[0]; ++r) {
        for (int64_t c = 0; c < box.extent[1]; ++c) expected.push_back(whole.at(box.offset[0] + r, box.offset[1] + c));
      }
      boxes.push_back(box);
    }
    std::vector<float> values(expected.size());
    const auto status = model->read_values("layers.0.k.weight", TensorKind::kMaster, boxes, values);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(values == expected);
  }
}

TEST_F(HuggingFace, EveryWrongTensorIsNamedWithItsFile) {
  Tensors stored = gpt2_tensors();
  stored.erase("transformer.h.1.ln_2.bias");
  put(stored, "transformer.h.0.attn.c_proj.weight", {kHidden, kHidden + 1});
  put(stored, "transformer.h.2.ln_1.weight", {kHidden});
  write_directory(files_, kPath, kGpt2Config, stored);
  EXPECT_THAT(
      refusal(),
      AllOf(HasSubstr("transformer.h.1.ln_2.bias [6] is missing"),
            HasSubstr("transformer.h.0.attn.c_proj.weight of /models/one/model.safetensors is [6, 7], config.json "
                      "makes it [6, 6]"),
            HasSubstr("transformer.h.2.ln_1.weight of /models/one/model.safetensors is no tensor of the model")));
  Tensors ours, untied = qwen2_tensors(ours);
  untied.erase("lm_head.weight");
  write_directory(files_, kPath, kQwen2Config, untied);
  EXPECT_THAT(refusal(), HasSubstr("lm_head.weight [11, 6] is missing; config.json does not tie it"));
}

TEST_F(HuggingFace, OtherTypesAndTwoNamesForOneTensor) {
  Tensors stored = gpt2_tensors();
  put(stored, "wte.weight", {kVocab, kHidden});
  write_directory(files_, kPath, kGpt2Config, stored);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("wte.weight is in"), HasSubstr("as transformer.wte.weight")));
  write_directory(files_, kPath, kGpt2Config, gpt2_tensors());
  std::string& bytes = *files_.bytes(std::string(kPath) + "/model.safetensors");
  for (size_t at = bytes.find("\"F32\""); at != std::string::npos; at = bytes.find("\"F32\"", at))
    bytes.replace(at, 5, "\"I32\"");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("is I32, want F32, BF16 or F16"), HasSubstr("and 20 more")));
}

TEST_F(HuggingFace, AnIndexThatLies) {
  const Tensors stored = gpt2_tensors();
  write_sharded(files_, kPath, kGpt2Config, stored, 2);
  std::string& index = *files_.bytes(std::string(kPath) + "/model.safetensors.index.json");
  const std::string good = index;
  const auto replaced = [&](const std::string& from, const std::string& to) {
    index = good;
    index.replace(index.find(from), from.size(), to);
    return refusal();
  };
  EXPECT_THAT(
      replaced("\"transformer.ln_f.bias\"", "\"transformer.ln_f.bios\""),
      AllOf(HasSubstr("transformer.ln_f.bias of /models/one/model-"),
            HasSubstr("is not in model.safetensors.index.json"), HasSubstr("transformer.ln_f.bios is not in model-")));
  EXPECT_THAT(replaced("\"model-0.safetensors\"", "\"../x.safetensors\""),
              HasSubstr("not the name of a file beside it"));
  EXPECT_THAT(replaced("\"model-0.safetensors\"", "\"model-9.safetensors\""), HasSubstr("model-9.safetensors"));
  EXPECT_THAT(replaced("\"weight_map\"", "\"weights\""), HasSubstr("no JSON object with a weight_map"));
}

TEST_F(HuggingFace, FilesThatAreNotThereOrDamaged) {
  ASSERT_TRUE(checkpoint::make_directories(files_, kPath).ok());
  EXPECT_TRUE(absl::IsNotFound(open_huggingface(files_, kPath).status()));
  ASSERT_TRUE(checkpoint::write_file(files_, std::string(kPath) + "/config.json", kGpt2Config).ok());
  EXPECT_THAT(refusal(), HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  ASSERT_TRUE(checkpoint::write_file(files_, std::string(kPath) + "/pytorch_model.bin", "PK").ok());
  EXPECT_THAT(refusal(), HasSubstr("pytorch_model.bin, which is Python's"));
  write_safetensors(files_, std::string(kPath) + "/model.safetensors", gpt2_tensors());
  files_.bytes(std::string(kPath) + "/model.safetensors")->pop_back();
  EXPECT_THAT(refusal(), AllOf(HasSubstr("/models/one/model.safetensors"), HasSubstr("offset")));
}

TEST_F(HuggingFace, AnotherModelThanTheSpecsIsToldFieldByField) {
  write_directory(files_, kPath, kGpt2Config, gpt2_tensors());
  const auto opened = open_model(files_, kPath);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->format, Format::kHuggingFace);
  v1::ModelSpec spec = opened->model;
  EXPECT_TRUE(check_same_model(spec, opened->model, kPath).ok());
  spec.set_norm_epsilon(1.0000001e-5);  // As a file has it that went through f32.
  EXPECT_TRUE(check_same_model(spec, opened->model, kPath).ok());
  spec.set_hidden(8);
  spec.set_tied_head(false);
  spec.set_norm_epsilon(1e-6);
  spec.set_max_positions(7);
  EXPECT_THAT(std::string(check_same_model(spec, opened->model, kPath).message()),
              AllOf(HasSubstr("/models/one: model.hidden is 6, the spec has 8;"),
                    HasSubstr("model.tied_head is true, the spec has false"),
                    HasSubstr("model.norm_epsilon is 1e-05, the spec has 1e-06"),
                    HasSubstr("model.max_positions is 5, the spec has 7")));
  const auto differs = [&](const char* config, auto change, const std::string& field) {
    Tensors ours;
    write_directory(files_, kPath, config, qwen2_tensors(ours));
    const auto qwen2 = open_model(files_, kPath);
    ASSERT_TRUE(qwen2.ok()) << qwen2.status();
    v1::ModelSpec other = qwen2->model;
    other.set_max_positions(1);  // Of no consequence with rotary positions.
    EXPECT_TRUE(check_same_model(other, qwen2->model, kPath).ok());
    change(other);
    EXPECT_THAT(std::string(check_same_model(other, qwen2->model, kPath).message()), HasSubstr(field));
  };
  differs(
      kQwen2Config, [](v1::ModelSpec& m) { m.set_rope_theta(1e4); }, "model.rope_theta is 1e+06, the spec has 10000");
  differs(
      kQwen2Config, [](v1::ModelSpec& m) { m.mutable_rope_scaling()->set_factor(8); },
      "model.rope_scaling.factor is 0");
}

TEST_F(HuggingFace, WhatIsNoModelIsSaidToBeNone) {
  const auto why = [&](const std::string& path) { return std::string(format_of(files_, path).status().message()); };
  EXPECT_TRUE(absl::IsNotFound(format_of(files_, "/nowhere").status()));
  ASSERT_TRUE(checkpoint::make_directories(files_, "/run/ckpt").ok());
  ASSERT_TRUE(checkpoint::make_directories(files_, "/empty").ok());
  ASSERT_TRUE(checkpoint::write_file(files_, "/empty/a.safetensors", "x").ok());
  ASSERT_TRUE(checkpoint::write_file(files_, "/empty/a.bin", "something").ok());
  EXPECT_THAT(why("/run"), HasSubstr("ckpt/step-*"));
  EXPECT_THAT(why("/empty"), HasSubstr("without manifest.json (ours) or config.json"));
  EXPECT_THAT(why("/empty/a.safetensors"), HasSubstr("name the directory"));
  EXPECT_THAT(why("/empty/a.bin"), HasSubstr("magic number 20240326"));
}

}  // namespace
}  // namespace telar::convert
