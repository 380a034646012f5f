// Rows of several documents through the whole model: against PyTorch with a block-diagonal mask and reset positions
// (tests/golden/make.py), and what one document is to another: nothing.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/worker/train/ranks.h"
#include "tests/worker/train/tensor_file.h"
#include "worker/backend/module.h"
#include "worker/plan/resolve.h"

namespace telar::train {
namespace {

using testing::golden_path;
using testing::Logical;
using testing::share;
using testing::TensorFile;

constexpr int64_t kBatch = 4, kSequence = 32;

struct Case {
  const char* model;
  const char* name;
  uint32_t micro = kBatch, data = 1, tensor = 1, pipeline = 1, zero = 0;
  const char* schedule = "";
  v1::MemorySpec::Recompute recompute = v1::MemorySpec::NONE;
  v1::Precision precision = v1::FP32;
};

// The CPU, or what TELAR_BACKEND names; see golden_test.cc.
std::unique_ptr<backend::Device> make_device(int index) {
  const char* backend = std::getenv("TELAR_BACKEND");
  if (backend == nullptr) return testing::cpu_device(index);
  return *backend::open_device(backend, {.index = index});
}
bool on_cpu() { return std::getenv("TELAR_BACKEND") == nullptr; }

v1::JobSpec spec_of(const Case& layout) {
  v1::JobSpec spec;
  std::ifstream json(golden_path(std::string(layout.model) + ".json"));
  std::stringstream text;
  text << json.rdbuf();
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text.str(), spec.mutable_model()).ok());
  spec.set_name("golden");
  spec.mutable_data()->add_train("/golden.bin");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_data()->set_reset_at_documents(true);
  spec.mutable_tokenizer()->set_end_of_document("0");
  spec.mutable_batch()->set_global(kBatch);
  spec.mutable_batch()->set_micro(layout.micro);
  spec.mutable_batch()->set_sequence_length(kSequence);
  spec.mutable_schedule()->set_steps(10);
  spec.mutable_resources()->set_devices(layout.data * layout.tensor * layout.pipeline);
  spec.mutable_parallel()->set_tensor(layout.tensor);
  spec.mutable_parallel()->set_pipeline(layout.pipeline);
  spec.mutable_parallel()->set_zero_stage(layout.zero);
  spec.mutable_parallel()->set_schedule(layout.schedule);
  spec.mutable_memory()->set_recompute(layout.recompute);
  spec.mutable_precision()->set_compute(layout.precision);
  EXPECT_THAT(plan::resolve(spec, v1::ResourceSpec::CPU), ::testing::IsEmpty());
  return spec;
}

class DocumentsTest : public ::testing::TestWithParam<Case> {
 protected:
  DocumentsTest() : weights_(golden_path(std::string(GetParam().model) + ".safetensors")) {}

  void SetUp() override {
    const uint32_t ranks = GetParam().data * GetParam().tensor * GetParam().pipeline;
    if (!on_cpu() && ranks > 1) GTEST_SKIP() << "one device";
  }
  // Runs `body(rank, replica)` on every rank at once, from the golden weights.
  template <typename Body>
  void on_all_ranks(Body body) {
    testing::on_all_ranks(spec_of(GetParam()), {.device = make_device}, [&](int rank, Replica& replica) {
      testing::write_masters(replica, [&](const std::string& name) { return weights_.get<float>("weights/" + name); });
      body(rank, replica);
    });
  }
  double tolerance(double of_fp32) const { return GetParam().precision == v1::FP32 ? of_fp32 : 2e-2; }

  const TensorFile weights_;
};

double norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::max(std::sqrt(squares), 1e-6);
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double squares = 0;
  for (size_t i = 0; i < want.size(); ++i) squares += std::pow(static_cast<double>(got[i]) - want[i], 2);
  return std::sqrt(squares) / norm(want);
}

TEST_P(DocumentsTest, EqualPyTorchs) {
  const TensorFile golden(golden_path(std::string(GetParam().model) + ".documents.safetensors"));
  const auto tokens = golden.get<int32_t>("tokens"), targets = golden.get<int32_t>("targets");
  const auto starts = golden.get<int32_t>("starts");
  const auto logits = golden.get<float>("logits");
  const double loss = golden.get<float>("loss")[0];
  Logical gradients;
  on_all_ranks([&](int, Replica& replica) {
    const size_t vocab = replica.shape().spec.model().vocab();
    std::vector<float> all;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int32_t t = 0; t < kSequence; ++t) {
        const auto row =
            replica.next_logits(std::span(tokens).subspan(static_cast<size_t>(b * kSequence), kSequence), t,
                                std::span(starts).subspan(static_cast<size_t>(b * kSequence), kSequence));
        ASSERT_TRUE(row.ok()) << row.status();
        ASSERT_EQ(row->size(), vocab);
        all.insert(all.end(), row->begin(), row->end());
      }
    }
    EXPECT_LT(relative_error(all, logits), tolerance(1e-5));
    const auto result =
        replica.train_step(1, share(tokens, replica), share(targets, replica), false, share(starts, replica));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_NEAR(result->loss, loss, tolerance(1e-5) * loss);
    EXPECT_EQ(result->valid_tokens,
              static_cast<double>(std::count_if(targets.begin(), targets.end(), [](int32_t id) { return id >= 0; })));
    gradients.add(replica, Replica::Kind::kGrad);
  });
  for (const checkpoint::TensorInfo& info : golden.tensors()) {
    if (!info.name.starts_with("grad/") || info.name.ends_with("k.bias")) continue;  // Nothing but rounding.
    const std::string name = info.name.substr(5);
    ASSERT_TRUE(gradients.tensors().contains(name)) << name;
    EXPECT_LT(relative_error(gradients.tensors().at(name), golden.get<float>(info.name)), 2 * tolerance(1e-4)) << name;
  }
}

// To the last bit on a CPU: logits, the loss of its targets, and what training on them does.
TEST_P(DocumentsTest, OneLeavesTheOtherAlone) {
  if (!on_cpu()) GTEST_SKIP() << "sums by atomics";
  constexpr size_t kBorder = 13;
  std::vector<int32_t> starts, targets, first, second;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (size_t t = 0; t < kSequence; ++t) {
      // The second document has even ids, the first odd ones: the embedding's gradients tell them apart.
      const auto id = static_cast<int32_t>((7 * t + 5 * static_cast<size_t>(b)) % 40) * 2;
      starts.push_back(t < kBorder ? 0 : static_cast<int32_t>(kBorder));
      targets.push_back(t < kBorder ? -1 : (id + 31) % 97);
      first.push_back(t < kBorder ? id + 1 : id);
      second.push_back(t < kBorder ? (id * 3 + 11) % 96 / 2 * 2 + 1 : id);
    }
  }
  ASSERT_NE(first, second);
  struct Seen {
    std::vector<float> logits;
    std::pair<double, double> eval;
    double loss = 0;
    Logical gradients;
  };
  const auto run = [&](const std::vector<int32_t>& tokens, Seen& seen) {
    on_all_ranks([&](int rank, Replica& replica) {
      std::vector<float> logits;
      for (int32_t t = kBorder; t < kSequence; ++t) {
        const auto row = replica.next_logits(std::span(tokens).first(kSequence), t, std::span(starts).first(kSequence));
        ASSERT_TRUE(row.ok()) << row.status();
        logits.insert(logits.end(), row->begin(), row->end());
      }
      const size_t micro = static_cast<size_t>(replica.shape().micro_tokens());
      const auto eval = replica.eval_batch(std::span(tokens).first(micro), std::span(targets).first(micro),
                                           std::span(starts).first(micro));
      ASSERT_TRUE(eval.ok()) << eval.status();
      const auto result =
          replica.train_step(1, share(tokens, replica), share(targets, replica), false, share(starts, replica));
      ASSERT_TRUE(result.ok()) << result.status();
      seen.gradients.add(replica, Replica::Kind::kGrad);
      if (rank != 0) return;
      seen.logits = logits;
      seen.eval = *eval;
      seen.loss = result->loss;
    });
  };
  Seen with_first, with_second;
  run(first, with_first);
  run(second, with_second);
  EXPECT_EQ(with_first.logits, with_second.logits);
  EXPECT_EQ(with_first.eval, with_second.eval);
  EXPECT_EQ(with_first.loss, with_second.loss);
  EXPECT_TRUE(with_first.gradients == with_second.gradients);
  EXPECT_GT(norm(with_first.gradients.tensors().at("layers.0.q.weight")), 1e-4);
  const std::vector<float>& embedding = with_first.gradients.tensors().at("embed.weight");
  if (spec_of(GetParam()).model().tied_head()) return;  // The head's gradient is in there.
  for (size_t id = 1; id < 97; id += 2) {
    for (size_t c = 0; c < 48; ++c) ASSERT_EQ(embedding[id * 48 + c], 0.0f) << "id " << id;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* model : {"gpt2_tiny", "llama_tiny"}) {
    all.push_back({.model = model, .name = "one"});
    all.push_back({.model = model, .name = "bf16", .precision = v1::BF16});
    all.push_back({.model = model, .name = "accumulation", .micro = 1});
    all.push_back({.model = model, .name = "dp2", .micro = 1, .data = 2});
    all.push_back({.model = model,
                   .name = "zero3_recompute",
                   .micro = 1,
                   .data = 2,
                   .zero = 3,
                   .recompute = v1::MemorySpec::FULL});
    all.push_back({.model = model, .name = "tp2", .tensor = 2});
    all.push_back({.model = model, .name = "pp2_zb_h1", .micro = 1, .pipeline = 2, .schedule = "zb-h1"});
    all.push_back({.model = model, .name = "tp2_pp2", .micro = 1, .tensor = 2, .pipeline = 2});
  }
  return all;
}
std::string case_name(const ::testing::TestParamInfo<Case>& tested) {
  return std::string(tested.param.model) + "_" + tested.param.name;
}
INSTANTIATE_TEST_SUITE_P(Models, DocumentsTest, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace telar::train
