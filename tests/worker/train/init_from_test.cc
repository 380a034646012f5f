// Runs that start from other people's weights: the golden models as Hugging Face directories, loaded in every layout,
// give PyTorch's logits and losses. tests/convert/with_transformers.py brings models of its own; see there.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/worker/train/ranks.h"
#include "tests/worker/train/tensor_file.h"
#include "worker/checkpoint/pieces.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/convert/convert.h"
#include "worker/plan/resolve.h"
#include "worker/train/failure.h"
#include "worker/train/saved_state.h"

namespace telar::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 4, kSequence = 32;

// A file of expectations: golden, or of tests/convert/with_transformers.py.
struct Layout {
  const char* name;
  uint32_t replicas = 1, tensor = 1, pipeline = 1, zero = 0;
};

v1::JobSpec spec_of(const v1::ModelSpec& model, const Layout& layout) {
  v1::JobSpec spec;
  *spec.mutable_model() = model;
  spec.set_name("init-from");
  spec.mutable_data()->add_train("/none.bin");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_batch()->set_global(kBatch);
  spec.mutable_batch()->set_sequence_length(kSequence);
  spec.mutable_schedule()->set_steps(10);
  spec.mutable_resources()->set_devices(layout.replicas * layout.tensor * layout.pipeline);
  spec.mutable_parallel()->set_tensor(layout.tensor);
  spec.mutable_parallel()->set_pipeline(layout.pipeline);
  spec.mutable_parallel()->set_zero_stage(layout.zero);
  EXPECT_THAT(plan::resolve(spec, v1::ResourceSpec::CPU), ::testing::IsEmpty());
  return spec;
}

std::vector<float> all_logits(Replica& replica, const std::vector<int32_t>& tokens) {
  std::vector<float> all;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int32_t t = 0; t < kSequence; ++t) {
      const auto row = replica.next_logits(std::span(tokens).subspan(b * kSequence, kSequence), t);
      EXPECT_TRUE(row.ok()) << row.status();
      if (row.ok()) all.insert(all.end(), row->begin(), row->end());
    }
  }
  return all;
}

// Loads `path` on every rank of the layout and compares with what PyTorch got; then `behind`, on the rank of a layout
// of one.
void compare(const std::string& path, const v1::ModelSpec& model, const Layout& layout,
             const testing::TensorFile& expected,
             const std::function<void(const v1::RankPlan&, Replica&)>& behind = nullptr) {
  const auto tokens = expected.get<int32_t>("tokens"), targets = expected.get<int32_t>("targets");
  const auto logits = expected.get<float>("logits");
  v1::RankPlan plan;
  *plan.mutable_spec() = spec_of(model, layout);
  plan.set_run_dir(fs::path(path).parent_path() / "run");
  plan.set_world_size(plan.spec().resources().devices());
  testing::on_all_ranks(plan.spec(), {.bucket_elements = 1}, [&](int, Replica& replica) {
    checkpoint::LocalCommitter alone;
    const SavedState saved(plan, alone);
    const auto weights = saved.open_weights(path);
    ASSERT_TRUE(weights.ok()) << weights.status();
    ASSERT_TRUE(saved.load_weights(**weights, replica).ok());
    const auto got = all_logits(replica, tokens);
    ASSERT_EQ(got.size(), logits.size());
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(got[i], logits[i], 1e-4) << layout.name << " " << i;
    const auto step = replica.train_step(1, testing::share(tokens, replica), testing::share(targets, replica), false);
    ASSERT_TRUE(step.ok()) << step.status();
    const float loss = expected.get<float>("loss")[0];
    EXPECT_NEAR(step->loss, loss, 1e-5 * loss) << layout.name;
    if (behind != nullptr) behind(plan, replica);
  });
}

// A checkpoint of the only rank's weights, as of step 1.
void save_weights(const v1::RankPlan& plan, const Replica& replica) {
  auto writer = checkpoint::CheckpointWriter::create(checkpoint::FileSystem::posix(), plan.run_dir(), 1, 1);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto read = [&](const parallel::Piece& piece, std::span<float> out) {
    return replica.read(Replica::Kind::kMaster, piece, out);
  };
  const parallel::FlatLayout& layout = replica.shape().layout;
  ASSERT_TRUE(checkpoint::add_pieces(**writer, layout, replica.pieces(), checkpoint::TensorKind::kMaster, read).ok());
  checkpoint::Manifest info;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(plan.spec(), &info.spec_json).ok());
  const auto published = (*writer)->publish(info, {});
  ASSERT_TRUE(published.ok()) << published.status();
}

constexpr Layout kLayouts[] = {
    {"one"}, {.name = "tp2", .tensor = 2}, {.name = "pp2", .pipeline = 2}, {.name = "zero3", .replicas = 2, .zero = 3}};

// The golden weights under the names and in the shapes of Hugging Face; written out here, apart from the code's tables.
class Directory {
 public:
  Directory(const std::string& path, const testing::TensorFile& golden, bool gpt2) : golden_(golden) {
    for (const checkpoint::TensorInfo& info : golden.tensors()) {
      if (info.name.starts_with("weights/")) shapes_[info.name.substr(8)] = info.shape;
    }
    gpt2 ? add_gpt2() : add_llama();
    std::vector<checkpoint::TensorInfo> infos;
    for (const auto& [name, tensor] : tensors_) infos.push_back({name, "F32", tensor.shape});
    auto writer = checkpoint::SafetensorsWriter::create(checkpoint::FileSystem::posix(), path + "/model.safetensors",
                                                        infos, {{"format", "pt"}});
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (const auto& [name, tensor] : tensors_) {
      EXPECT_TRUE((*writer)->append(std::as_bytes(std::span(tensor.values))).ok());
    }
    EXPECT_TRUE((*writer)->finish().ok());
  }

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  Tensor ours(const std::string& name) const { return {shapes_.at(name), golden_.get<float>("weights/" + name)}; }
  // Our [out, in] of several side by side, as Conv1D's [in, sum of out].
  Tensor conv(const std::vector<std::string>& names) const {
    Tensor made{{shapes_.at(names[0])[1], 0}, {}};
    for (const std::string& name : names) made.shape[1] += shapes_.at(name)[0];
    for (int64_t in = 0; in < made.shape[0]; ++in) {
      for (const std::string& name : names) {
        const Tensor one = ours(name);
        for (int64_t out = 0; out < one.shape[0]; ++out) made.values.push_back(one.values[out * one.shape[1] + in]);
      }
    }
    return made;
  }
  void add_gpt2() {
    tensors_["wte.weight"] = ours("embed.weight");
    tensors_["wpe.weight"] = ours("positions.weight");
    for (const char* part : {".weight", ".bias"})
      tensors_[std::string("ln_f") + part] = ours(std::string("final_norm") + part);
    for (const std::string i : {"0", "1"}) {
      const std::string h = "h." + i + ".", l = "layers." + i + ".";
      for (const char* part : {".weight", ".bias"}) {
        tensors_[h + "ln_1" + part] = ours(l + "attn_norm" + part);
        tensors_[h + "ln_2" + part] = ours(l + "mlp_norm" + part);
      }
      tensors_[h + "attn.c_attn.weight"] = conv({l + "q.weight", l + "k.weight", l + "v.weight"});
      Tensor& biases = tensors_[h + "attn.c_attn.bias"];
      for (const char* name : {"q.bias", "k.bias", "v.bias"}) {
        const Tensor one = ours(l + name);
        biases.values.insert(biases.values.end(), one.values.begin(), one.values.end());
      }
      biases.shape = {static_cast<int64_t>(biases.values.size())};
      for (const auto& [theirs, our] : {std::pair{"attn.c_proj", "o"}, {"mlp.c_fc", "up"}, {"mlp.c_proj", "down"}}) {
        tensors_[h + theirs + ".weight"] = conv({l + our + ".weight"});
        tensors_[h + theirs + ".bias"] = ours(l + our + ".bias");
      }
    }
  }
  void add_llama() {
    static const std::map<std::string, std::string> kModules = {
        {"attn_norm", "input_layernorm"}, {"mlp_norm", "post_attention_layernorm"},
        {"q", "self_attn.q_proj"},        {"k", "self_attn.k_proj"},
        {"v", "self_attn.v_proj"},        {"o", "self_attn.o_proj"},
        {"gate", "mlp.gate_proj"},        {"up", "mlp.up_proj"},
        {"down", "mlp.down_proj"}};
    for (const auto& [name, shape] : shapes_) {
      std::string theirs;
      if (name == "embed.weight") theirs = "model.embed_tokens.weight";
      if (name == "final_norm.weight") theirs = "model.norm.weight";
      if (name == "head.weight") theirs = "lm_head.weight";
      if (name.starts_with("layers.")) {  // layers.1.q.bias
        const size_t module = name.find('.', 7) + 1, part = name.find('.', module);
        theirs =
            "model." + name.substr(0, module) + kModules.at(name.substr(module, part - module)) + name.substr(part);
      }
      tensors_[theirs] = ours(name);
    }
  }

  const testing::TensorFile& golden_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, Tensor> tensors_;
};

// What transformers says of each golden model.
const std::map<std::string, std::string> kConfigs = {
    {"gpt2_tiny",
     R"({"model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 97})"},
    {"llama_tiny", R"({"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
      "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 80, "vocab_size": 97, "rms_norm_eps": 1e-05})"},
    {"llama3_tiny", R"({"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
      "num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 97, "rms_norm_eps": 1e-05,
      "tie_word_embeddings": true, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 16}})"},
    {"qwen2_tiny", R"({"model_type": "qwen2", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
      "num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 97, "rms_norm_eps": 1e-06,
      "tie_word_embeddings": true, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})"}};

class InitFromTest : public ::testing::TestWithParam<std::pair<const std::string, std::string>> {
 protected:
  InitFromTest() {
    char name[] = "/tmp/telar_init_from_test_XXXXXX";
    root_ = mkdtemp(name);
  }
  ~InitFromTest() override { fs::remove_all(root_); }
  fs::path root_;
};

TEST_P(InitFromTest, EveryLayoutGivesPyTorchsNumbers) {
  const auto& [name, config] = GetParam();
  const std::string golden = testing::golden_path(name);
  const testing::TensorFile expected(golden + ".safetensors");
  std::stringstream json;
  json << std::ifstream(golden + ".json").rdbuf();
  v1::ModelSpec model;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json.str(), &model).ok());
  const std::string path = root_ / "hf";
  fs::create_directories(path);
  std::ofstream(path + "/config.json") << config;
  const Directory directory(path, expected, name == "gpt2_tiny");
  for (const Layout& layout : kLayouts) compare(path, model, layout, expected);

  // The same of a checkpoint that was made of it.
  auto& files = checkpoint::FileSystem::posix();
  const auto opened = convert::open_model(files, path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const std::string ours = root_ / "ours";
  const auto converted = convert::convert(files, *opened, ours, {.to = convert::Format::kTelar});
  ASSERT_TRUE(converted.ok()) << converted.status();
  compare(ours, model, kLayouts[1], expected);

  // It holds no moments, so that nothing can be resumed from it; and what does not fit is a mistake in the spec.
  v1::RankPlan plan;
  *plan.mutable_spec() = spec_of(model, kLayouts[0]);
  checkpoint::LocalCommitter alone;
  const absl::Status resumed = SavedState(plan, alone).check_state(ours);
  EXPECT_EQ(class_of(resumed), v1::CONFIG);
  EXPECT_THAT(std::string(resumed.message()), HasSubstr("weights only"));
  plan.mutable_spec()->mutable_model()->set_ffn(96);
  for (const std::string& one : {path, ours, root_.string() + "/none"}) {
    const auto weights = SavedState(plan, alone).open_weights(one);
    EXPECT_EQ(class_of(weights.status()), v1::CONFIG) << weights.status();
  }
  EXPECT_THAT(std::string(SavedState(plan, alone).open_weights(path).status().message()), HasSubstr("model.ffn is "));
}
INSTANTIATE_TEST_SUITE_P(Models, InitFromTest, ::testing::ValuesIn(kConfigs),
                         [](const auto& model) { return model.param.first; });

// Each folder of TELAR_CONVERT_CASES: hf/ and expected.safetensors that transformers made. Leaves a trained checkpoint
// in run/ and its logits in ours.safetensors, for transformers to compare with after the export.
TEST(Transformers, Cases) {
  const char* cases = std::getenv("TELAR_CONVERT_CASES");
  if (cases == nullptr)
    GTEST_SKIP() << "TELAR_CONVERT_CASES names no folder; tests/convert/with_transformers.py sets it";
  auto& files = checkpoint::FileSystem::posix();
  int seen = 0;
  for (const auto& entry : fs::directory_iterator(cases)) {
    SCOPED_TRACE(entry.path().string());
    const std::string path = entry.path() / "hf";
    const testing::TensorFile expected(entry.path() / "expected.safetensors");
    const auto opened = convert::open_model(files, path);
    ASSERT_TRUE(opened.ok()) << opened.status();
    for (const Layout& layout : kLayouts) {
      if (layout.tensor == 1 && layout.replicas * layout.pipeline == 1) continue;
      compare(path, opened->model, layout, expected);
    }
    compare(path, opened->model, kLayouts[0], expected, [&](const v1::RankPlan& plan, Replica& replica) {
      const auto tokens = expected.get<int32_t>("tokens");
      save_weights(plan, replica);
      const auto logits = all_logits(replica, tokens);
      auto writer = checkpoint::SafetensorsWriter::create(
          files, entry.path() / "ours.safetensors", {{"logits", "F32", {static_cast<int64_t>(logits.size())}}}, {});
      ASSERT_TRUE(writer.ok()) << writer.status();
      ASSERT_TRUE((*writer)->append(std::as_bytes(std::span(logits))).ok());
      ASSERT_TRUE((*writer)->finish().ok());
    });
    ++seen;
  }
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace telar::train
