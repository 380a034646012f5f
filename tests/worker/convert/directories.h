// Other people's files, made by hand: names, shapes and orders written out here, apart from the tables of the code.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/worker/checkpoint/memory_files.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/weight_source.h"

namespace telar::convert::testing {

using checkpoint::FileSystem;
using checkpoint::TensorKind;
using parallel::Box;

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
  float at(int64_t row, int64_t column) const { return values[static_cast<size_t>(row * shape[1] + column)]; }
};
using Tensors = std::map<std::string, Tensor>;

// Multiples of 1/64 below 2, which bf16 and f16 hold exactly.
inline void put(Tensors& all, const std::string& name, std::vector<int64_t> shape) {
  static std::mt19937_64 random(7);
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  Tensor tensor{std::move(shape), {}};
  for (int64_t i = 0; i < elements; ++i) tensor.values.push_back((static_cast<float>(random() % 255) - 127.0f) / 64.0f);
  all[name] = std::move(tensor);
}

inline constexpr int64_t kVocab = 11, kHidden = 6, kPositions = 5, kFfn = 24, kLayers = 2;

inline const char* kGpt2Config = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 6,
  "n_layer": 2, "n_head": 2, "n_positions": 5, "n_ctx": 5, "n_inner": null, "vocab_size": 11,
  "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "resid_pdrop": 0.1, "summary_type": "cls_index"})";

inline Tensors gpt2_tensors(const std::string& prefix = "transformer.") {
  Tensors all;
  put(all, prefix + "wte.weight", {kVocab, kHidden});
  put(all, prefix + "wpe.weight", {kPositions, kHidden});
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string h = prefix + "h." + std::to_string(i) + ".";
    for (const char* norm : {"ln_1", "ln_2"}) {
      put(all, h + norm + ".weight", {kHidden});
      put(all, h + norm + ".bias", {kHidden});
    }
    put(all, h + "attn.c_attn.weight", {kHidden, 3 * kHidden});
    put(all, h + "attn.c_attn.bias", {3 * kHidden});
    put(all, h + "attn.c_proj.weight", {kHidden, kHidden});
    put(all, h + "attn.c_proj.bias", {kHidden});
    put(all, h + "mlp.c_fc.weight", {kHidden, kFfn});
    put(all, h + "mlp.c_fc.bias", {kFfn});
    put(all, h + "mlp.c_proj.weight", {kFfn, kHidden});
    put(all, h + "mlp.c_proj.bias", {kHidden});
  }
  put(all, prefix + "ln_f.weight", {kHidden});
  put(all, prefix + "ln_f.bias", {kHidden});
  return all;
}

// Columns [first, first + rows) of a stored [in, out], as our [out, in].
inline Tensor turned(const Tensor& from, int64_t first, int64_t rows) {
  Tensor tensor{{rows, from.shape[0]}, {}};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < from.shape[0]; ++c) tensor.values.push_back(from.at(c, first + r));
  }
  return tensor;
}
inline Tensor cut(const Tensor& from, int64_t first, int64_t count) {
  return {{count}, {from.values.begin() + first, from.values.begin() + first + count}};
}

// What our tensors are by gpt2_tensors().
inline Tensors gpt2_logical(const Tensors& stored, const std::string& prefix = "transformer.") {
  Tensors ours;
  ours["embed.weight"] = stored.at(prefix + "wte.weight");
  ours["positions.weight"] = stored.at(prefix + "wpe.weight");
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string h = prefix + "h." + std::to_string(i) + ".", l = "layers." + std::to_string(i) + ".";
    const auto weight = [&](const char* theirs, const char* our, int64_t first, int64_t rows) {
      ours[l + our + ".weight"] = turned(stored.at(h + theirs + ".weight"), first, rows);
      ours[l + our + ".bias"] = cut(stored.at(h + theirs + ".bias"), first, rows);
    };
    weight("attn.c_attn", "q", 0, kHidden);
    weight("attn.c_attn", "k", kHidden, kHidden);
    weight("attn.c_attn", "v", 2 * kHidden, kHidden);
    weight("attn.c_proj", "o", 0, kHidden);
    weight("mlp.c_fc", "up", 0, kFfn);
    weight("mlp.c_proj", "down", 0, kHidden);
    for (const char* part : {".weight", ".bias"}) {
      ours[l + "attn_norm" + part] = stored.at(h + "ln_1" + part);
      ours[l + "mlp_norm" + part] = stored.at(h + "ln_2" + part);
    }
  }
  for (const char* part : {".weight", ".bias"})
    ours[std::string("final_norm") + part] = stored.at(prefix + "ln_f" + part);
  return ours;
}

// Four query heads of 4 over a width of 6, two key-value heads.
inline const char* kQwen2Config = R"({"model_type": "qwen2", "hidden_size": 6, "num_hidden_layers": 2,
  "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 10, "vocab_size": 11,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "hidden_act": "silu",
  "tie_word_embeddings": false, "use_sliding_window": false, "sliding_window": null, "max_window_layers": 2})";

// And ours by the same values.
inline Tensors qwen2_tensors(Tensors& ours) {
  Tensors all;
  const auto add = [&](const std::string& theirs, const std::string& our, std::vector<int64_t> shape) {
    put(all, theirs, std::move(shape));
    ours[our] = all[theirs];
  };
  add("model.embed_tokens.weight", "embed.weight", {kVocab, kHidden});
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string m = "model.layers." + std::to_string(i) + ".", l = "layers." + std::to_string(i) + ".";
    add(m + "input_layernorm.weight", l + "attn_norm.weight", {kHidden});
    add(m + "self_attn.q_proj.weight", l + "q.weight", {12, kHidden});
    add(m + "self_attn.q_proj.bias", l + "q.bias", {12});
    add(m + "self_attn.k_proj.weight", l + "k.weight", {4, kHidden});
    add(m + "self_attn.k_proj.bias", l + "k.bias", {4});
    add(m + "self_attn.v_proj.weight", l + "v.weight", {4, kHidden});
    add(m + "self_attn.v_proj.bias", l + "v.bias", {4});
    add(m + "self_attn.o_proj.weight", l + "o.weight", {kHidden, 12});
    add(m + "post_attention_layernorm.weight", l + "mlp_norm.weight", {kHidden});
    add(m + "mlp.gate_proj.weight", l + "gate.weight", {10, kHidden});
    add(m + "mlp.up_proj.weight", l + "up.weight", {10, kHidden});
    add(m + "mlp.down_proj.weight", l + "down.weight", {kHidden, 10});
  }
  add("model.norm.weight", "final_norm.weight", {kHidden});
  add("lm_head.weight", "head.weight", {kVocab, kHidden});
  return all;
}

template <typename T>
std::vector<std::byte> encoded_as(const std::vector<float>& values) {
  std::vector<T> stored;
  for (const float value : values) stored.push_back(T(value));
  const auto bytes = std::as_bytes(std::span(stored));
  return {bytes.begin(), bytes.end()};
}
inline std::vector<std::byte> encoded(const std::vector<float>& values, backend::DType dtype) {
  if (dtype == backend::DType::kBF16) return encoded_as<backend::Bf16>(values);
  return dtype == backend::DType::kF16 ? encoded_as<backend::F16>(values) : encoded_as<float>(values);
}

inline void write_safetensors(FileSystem& files, const std::string& path, const Tensors& tensors,
                              backend::DType dtype = backend::DType::kF32) {
  std::vector<checkpoint::TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) infos.push_back({name, checkpoint::dtype_name(dtype), tensor.shape});
  auto writer = checkpoint::SafetensorsWriter::create(files, path, infos, {{"format", "pt"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& [name, tensor] : tensors) ASSERT_TRUE((*writer)->append(encoded(tensor.values, dtype)).ok());
  ASSERT_TRUE((*writer)->finish().ok());
}

inline void write_directory(FileSystem& files, const std::string& path, const std::string& config,
                            const Tensors& tensors, backend::DType dtype = backend::DType::kF32) {
  ASSERT_TRUE(checkpoint::make_directories(files, path).ok());
  ASSERT_TRUE(checkpoint::write_file(files, path + "/config.json", config).ok());
  write_safetensors(files, path + "/model.safetensors", tensors, dtype);
}

// Tensors dealt out over `count` files in turn, and the index.
inline void write_sharded(FileSystem& files, const std::string& path, const std::string& config, const Tensors& tensors,
                          size_t count) {
  ASSERT_TRUE(checkpoint::make_directories(files, path).ok());
  ASSERT_TRUE(checkpoint::write_file(files, path + "/config.json", config).ok());
  std::vector<Tensors> shards(count);
  std::string map;
  size_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    shards[at % count][name] = tensor;
    map += (at == 0 ? "\"" : ", \"") + name + "\": \"model-" + std::to_string(at % count) + ".safetensors\"";
    ++at;
  }
  for (size_t i = 0; i < count; ++i)
    write_safetensors(files, path + "/model-" + std::to_string(i) + ".safetensors", shards[i]);
  const std::string index = R"({"metadata": {"total_size": 1}, "weight_map": {)" + map + "}}";
  ASSERT_TRUE(checkpoint::write_file(files, path + "/model.safetensors.index.json", index).ok());
}

inline std::vector<float> read_whole(const checkpoint::WeightSource& source, const std::string& name,
                                     const std::vector<int64_t>& shape) {
  const Box box{std::vector<int64_t>(shape.size(), 0), shape};
  std::vector<float> values(static_cast<size_t>(box.elements()), -99.0f);
  const auto status = source.read_values(name, TensorKind::kMaster, std::span(&box, 1), values);
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

inline void expect_equal(const checkpoint::WeightSource& source, const Tensors& ours) {
  for (const auto& [name, tensor] : ours) EXPECT_EQ(read_whole(source, name, tensor.shape), tensor.values) << name;
}

// All tensors of a safetensors file, as bytes.
inline std::map<std::string, std::vector<std::byte>> contents(FileSystem& files, const std::string& path) {
  std::map<std::string, std::vector<std::byte>> all;
  const auto file = checkpoint::SafetensorsFile::open(files, path);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return all;
  for (const checkpoint::TensorInfo& info : (*file)->tensors()) {
    all[info.name].resize(info.end - info.begin);
    EXPECT_TRUE((*file)->read(info, 0, all[info.name]).ok());
  }
  return all;
}

// Counts the bytes that are read.
class CountingFiles : public checkpoint::MemoryFiles {
 public:
  uint64_t bytes_read() const { return bytes_; }
  void reset() { bytes_ = 0; }
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> open(const std::string& path) override {
    auto file = MemoryFiles::open(path);
    if (!file.ok()) return file;
    return std::make_unique<Counting>(*std::move(file), bytes_);
  }

 private:
  class Counting : public checkpoint::ReadableFile {
   public:
    Counting(std::unique_ptr<ReadableFile> file, uint64_t& bytes) : file_(std::move(file)), bytes_(bytes) {}
    uint64_t size() const override { return file_->size(); }
    absl::Status read(uint64_t offset, std::span<std::byte> out) const override {
      bytes_ += out.size();
      return file_->read(offset, out);
    }

   private:
    std::unique_ptr<ReadableFile> file_;
    uint64_t& bytes_;
  };
  uint64_t bytes_ = 0;
};

}  // namespace telar::convert::testing
