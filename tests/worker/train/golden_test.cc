// The whole model against PyTorch: logits, loss, every gradient and ten AdamW steps of four tiny models, alone, with
// accumulation, and over ranks in every dimension, in fp32, bf16 and fp16. tests/golden/make.py made the files.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
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

constexpr int64_t kBatch = 4, kSequence = 32;
constexpr int kSteps = 10;

class Golden {
 public:
  explicit Golden(const std::string& name) : file_(golden_path(name + ".safetensors")) {
    std::ifstream json(golden_path(name + ".json"));
    std::stringstream text;
    text << json.rdbuf();
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text.str(), spec_.mutable_model()).ok());
    spec_.set_name("golden");
    spec_.mutable_data()->add_train("/golden.bin");
    spec_.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
    spec_.mutable_batch()->set_global(kBatch);
    spec_.mutable_batch()->set_sequence_length(kSequence);
    spec_.mutable_optimizer()->set_learning_rate(1e-3);
    spec_.mutable_schedule()->set_kind(v1::ScheduleSpec::CONSTANT);
    spec_.mutable_schedule()->set_steps(kSteps);
  }

  v1::JobSpec spec() const { return spec_; }

  template <typename T>
  std::vector<T> get(const std::string& name) const {
    return file_.get<T>(name);
  }
  // What is behind a prefix: the tensors under it.
  std::vector<std::string> names(const std::string& prefix) const {
    std::vector<std::string> found;
    for (const checkpoint::TensorInfo& info : file_.tensors()) {
      if (info.name.starts_with(prefix)) found.push_back(info.name.substr(prefix.size()));
    }
    return found;
  }

 private:
  testing::TensorFile file_;
  v1::JobSpec spec_;
};

struct Layout {
  const char* name;
  int replicas = 1;
  uint32_t micro = kBatch;
  v1::Precision precision = v1::FP32;
  Replica::Execution execution = Replica::Execution::kLanes;
  bool bucket_a_unit = false;
  double loss_scale = 0;         // 0: as the spec's default.
  uint64_t growth_interval = 0;  // 0: the same.
  uint32_t tensor = 1, pipeline = 1, zero = 0;
  const char* schedule = "";

  int ranks() const { return replicas * static_cast<int>(tensor * pipeline); }
};

v1::JobSpec spec_of(const Golden& golden, const Layout& layout) {
  v1::JobSpec spec = golden.spec();
  spec.mutable_resources()->set_devices(static_cast<uint32_t>(layout.ranks()));
  spec.mutable_batch()->set_micro(layout.micro);
  spec.mutable_precision()->set_compute(layout.precision);
  spec.mutable_parallel()->set_tensor(layout.tensor);
  spec.mutable_parallel()->set_pipeline(layout.pipeline);
  spec.mutable_parallel()->set_zero_stage(layout.zero);
  spec.mutable_parallel()->set_schedule(layout.schedule);
  if (layout.loss_scale > 0) {
    spec.mutable_precision()->mutable_loss_scale()->set_initial(layout.loss_scale);
    spec.mutable_precision()->mutable_loss_scale()->set_growth_interval(layout.growth_interval);
  }
  EXPECT_THAT(plan::resolve(spec, v1::ResourceSpec::CPU), ::testing::IsEmpty());
  return spec;
}

// The CPU, or what TELAR_BACKEND names, a device a rank: on a GPU node TELAR_BACKEND=cuda train_golden_test. What needs
// more GPUs than there are is skipped.
std::unique_ptr<backend::Device> make_device(int index) {
  const char* backend = std::getenv("TELAR_BACKEND");
  if (backend == nullptr) return testing::cpu_device(index);
  auto device = backend::open_device(backend, {.index = index});
  if (!device.ok()) {
    std::cerr << device.status() << "\n";
    std::abort();
  }
  return *std::move(device);
}

bool has_devices(int count) {
  const char* backend = std::getenv("TELAR_BACKEND");
  return backend == nullptr || backend::open_device(backend, {.index = count - 1}).ok();
}

testing::RankOptions options_of(const Layout& layout) {
  return {.execution = layout.execution, .bucket_elements = layout.bucket_a_unit ? 1 : 0, .device = make_device};
}

void load_weights(const Golden& golden, Replica& replica) {
  testing::write_masters(replica, [&](const std::string& name) { return golden.get<float>("weights/" + name); });
}

// Runs `body(rank, replica)` on every rank at once, from the golden weights.
template <typename Body>
void on_all_ranks(const Golden& golden, const Layout& layout, Body body) {
  // GPUs of one process map each other's memory: making a graph on one could wait for a kernel of another that waits
  // for the graph. Ranks are processes of their own; only here they are threads.
  if (layout.ranks() > 1) setenv("TELAR_GRAPHS", "0", 1);
  testing::on_all_ranks(spec_of(golden, layout), options_of(layout), [&](int rank, Replica& replica) {
    load_weights(golden, replica);
    body(rank, replica);
  });
  unsetenv("TELAR_GRAPHS");
}

double norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::max(std::sqrt(squares), 1e-6);
}

double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double squares = 0;
  for (size_t i = 0; i < want.size(); ++i) squares += std::pow(static_cast<double>(got[i]) - want[i], 2);
  return std::sqrt(squares);
}

// |got - want| over the norm of want, for whole tensors.
double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  return distance(got, want) / norm(want);
}

struct Case {
  const char* model;
  Layout layout;
};
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(info.param.model) + "_" + info.param.layout.name;
}

class GoldenTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const int needed = GetParam().layout.ranks();
    if (!has_devices(needed)) GTEST_SKIP() << "needs " << needed << " devices";
  }
  bool fp32() const { return GetParam().layout.precision == v1::FP32; }
  // fp16 keeps three bits more than bf16.
  double tolerance(double of_fp32) const {
    if (fp32()) return of_fp32;
    return GetParam().layout.precision == v1::BF16 ? 2e-2 : 5e-3;
  }
};

// What a rank holds of each logical gradient, zero where it holds nothing, and the wanted gradient there.
struct Held {
  std::vector<float> got, wanted;
};
std::map<std::string, Held> held_gradients(const Golden& golden, const Replica& replica, double loss_scale) {
  std::map<std::string, Held> held;
  for (const parallel::Piece& piece : replica.pieces()) {
    const parallel::Parameter& parameter = testing::parameter_of(replica, piece);
    const std::vector<float> wanted = golden.get<float>("grad/" + parameter.name);
    std::vector<float> values(static_cast<size_t>(piece.slice.count));
    EXPECT_TRUE(replica.read(Replica::Kind::kGrad, piece, values).ok());
    Held& one = held[parameter.name];
    one.got.resize(wanted.size());
    one.wanted.resize(wanted.size());
    testing::for_each_element(parameter, piece.slice, [&](size_t i, size_t j) {
      one.got[j] = values[i] / static_cast<float>(loss_scale);
      one.wanted[j] = wanted[j];
    });
  }
  return held;
}

// Keys' biases have no gradient but rounding: softmax does not see a constant added to all scores of a row.
bool is_rounding(const std::string& name) { return name.ends_with("k.bias"); }

TEST_P(GoldenTest, LossAndEveryGradient) {
  const Golden golden(GetParam().model);
  const Layout& layout = GetParam().layout;
  const auto tokens = golden.get<int32_t>("tokens"), targets = golden.get<int32_t>("targets");
  const double want = golden.get<float>("loss")[0];
  // PyTorch's own bf16 gradients of these models are off by up to 4.7e-2 in one tensor and 3.0e-2 over all.
  const double of_one = fp32() ? 1e-4 : 2 * tolerance(0);
  // Tensor ranks round their summands, too.
  const double of_all = tolerance(1e-4) * (!fp32() && layout.tensor > 1 ? 1.25 : 1);
  const bool all_on_each_rank = layout.tensor * layout.pipeline == 1 && layout.zero == 0;
  Logical gradients;
  std::vector<StepResult> results(static_cast<size_t>(layout.ranks()));
  on_all_ranks(golden, layout, [&](int rank, Replica& replica) {
    const auto result = replica.train_step(1, share(tokens, replica), share(targets, replica), false);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_FALSE(result->skipped);
    EXPECT_NEAR(result->loss, want, tolerance(1e-5) * (fp32() ? 1 : want));
    results[static_cast<size_t>(rank)] = *result;
    gradients.add(replica, Replica::Kind::kGrad);
    std::vector<float> all_got, all_wanted;
    for (const auto& [name, held] : held_gradients(golden, replica, result->loss_scale)) {
      if (is_rounding(name)) continue;
      // Of a slice against the norm of the whole: what a rank has of a tensor may be next to nothing.
      const std::vector<float> whole = golden.get<float>("grad/" + name);
      EXPECT_LT(distance(held.got, held.wanted) / norm(whole), of_one) << name << " rank " << rank;
      all_got.insert(all_got.end(), held.got.begin(), held.got.end());
      all_wanted.insert(all_wanted.end(), held.wanted.begin(), held.wanted.end());
    }
    EXPECT_LT(relative_error(all_got, all_wanted), all_on_each_rank ? of_all : of_one) << "rank " << rank;
  });
  // Put together from all ranks, they are all there, and their norm is what every rank tells.
  std::vector<float> all_got, all_wanted;
  double total = 0;
  for (const std::string& name : golden.names("grad/")) {
    ASSERT_TRUE(gradients.tensors().contains(name)) << name;
    std::vector<float> got = gradients.tensors().at(name);
    const std::vector<float> wanted = golden.get<float>("grad/" + name);
    ASSERT_EQ(got.size(), wanted.size()) << name;
    for (float& value : got) value /= static_cast<float>(results[0].loss_scale);
    total += std::pow(norm(got), 2);
    if (is_rounding(name)) continue;
    EXPECT_LT(relative_error(got, wanted), of_one) << name;
    all_got.insert(all_got.end(), got.begin(), got.end());
    all_wanted.insert(all_wanted.end(), wanted.begin(), wanted.end());
  }
  EXPECT_EQ(gradients.tensors().size(), golden.names("grad/").size());
  EXPECT_LT(relative_error(all_got, all_wanted), of_all);
  for (const StepResult& result : results) EXPECT_NEAR(std::sqrt(total), result.grad_norm, 1e-4 * result.grad_norm);
}

TEST_P(GoldenTest, TenOptimizerSteps) {
  const Golden golden(GetParam().model);
  const Layout& layout = GetParam().layout;
  const auto tokens = golden.get<int32_t>("step_tokens"), targets = golden.get<int32_t>("step_targets");
  const auto losses = golden.get<float>("step_loss"), norms = golden.get<float>("grad_norm");
  on_all_ranks(golden, layout, [&](int, Replica& replica) {
    for (int step = 0; step < kSteps; ++step) {
      const auto part = [&](const std::vector<int32_t>& all) {
        const std::vector<int32_t> batch(all.begin() + step * kBatch * kSequence,
                                         all.begin() + (step + 1) * kBatch * kSequence);
        const std::span<const int32_t> mine = share(batch, replica);
        return std::vector<int32_t>(mine.begin(), mine.end());
      };
      const auto result = replica.train_step(static_cast<uint64_t>(step) + 1, part(tokens), part(targets), false);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_NEAR(result->loss, losses[step], tolerance(1e-4) * (fp32() ? 1 : losses[step])) << "step " << step + 1;
      EXPECT_NEAR(result->grad_norm, norms[step], tolerance(1e-4) * norms[step]) << "step " << step + 1;
    }
  });
}

// The logits program knows no accumulation, and its ranks are of one replica each: all get all logits.
using GoldenLogitsTest = GoldenTest;
TEST_P(GoldenLogitsTest, EqualPyTorchs) {
  const Golden golden(GetParam().model);
  const Layout& layout = GetParam().layout;
  const auto tokens = golden.get<int32_t>("tokens");
  const auto want = golden.get<float>("logits");
  on_all_ranks(golden, layout, [&](int, Replica& replica) {
    const size_t vocab = replica.shape().spec.model().vocab();
    std::vector<float> all;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int32_t t = 0; t < kSequence; ++t) {
        const auto row = replica.next_logits(std::span(tokens).subspan(b * kSequence, kSequence), t);
        ASSERT_TRUE(row.ok()) << row.status();
        ASSERT_EQ(row->size(), vocab);
        all.insert(all.end(), row->begin(), row->end());
      }
    }
    if (!fp32()) {
      EXPECT_LT(relative_error(all, want), tolerance(0));
    } else {
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(all[i], want[i], 1e-4) << i;
    }
  });
}

// A scale far too large comes down, goes up again until it is too large again, and so on; all the while the model
// learns as it does in fp32 from the steps that were not skipped. So those leave no trace: not in moments, weights, or
// Adam's count of steps.
using LossScaleTest = ::testing::TestWithParam<const char*>;
TEST_P(LossScaleTest, SkippedStepsLeaveNoTrace) {
  constexpr int kManySteps = 30;
  const Golden golden(GetParam());
  const auto tokens = golden.get<int32_t>("step_tokens"), targets = golden.get<int32_t>("step_targets");
  fakes::InProcessStore store;
  const Layout scaled{.name = "fp16", .precision = v1::FP16, .loss_scale = 16777216, .growth_interval = 3};
  const auto make = [&](const Layout& layout) {
    testing::Rank rank = testing::make_rank(spec_of(golden, layout), store, 0, options_of(layout));
    load_weights(golden, *rank.replica);
    return rank;
  };
  const testing::Rank fp16 = make(scaled), fp32 = make({.name = "fp32"});
  double scale = scaled.loss_scale;
  int skipped = 0, grown = 0, skipped_after_growth = 0;
  for (int step = 0; step < kManySteps; ++step) {
    const size_t first = static_cast<size_t>(step % kSteps * kBatch * kSequence);
    const auto inputs = std::span(tokens).subspan(first, kBatch * kSequence);
    const auto wanted = std::span(targets).subspan(first, kBatch * kSequence);
    const auto got = fp16.replica->train_step(static_cast<uint64_t>(step) + 1, inputs, wanted, false);
    ASSERT_TRUE(got.ok()) << got.status();
    if (got->skipped) {
      EXPECT_EQ(got->loss_scale, scale / 2);
      EXPECT_FALSE(std::isfinite(got->grad_norm));
      ++(grown > 0 ? skipped_after_growth : skipped);
    } else {
      EXPECT_TRUE(got->loss_scale == scale || got->loss_scale == 2 * scale) << got->loss_scale << " behind " << scale;
      grown += got->loss_scale > scale;
      const auto want = fp32.replica->train_step(static_cast<uint64_t>(step) + 1, inputs, wanted, false);
      ASSERT_TRUE(want.ok()) << want.status();
      EXPECT_NEAR(got->loss, want->loss, 4e-3 * want->loss) << "step " << step + 1;
      EXPECT_NEAR(got->grad_norm, want->grad_norm, 2e-2 * want->grad_norm) << "step " << step + 1;
    }
    scale = got->loss_scale;
  }
  EXPECT_GT(skipped, 0);
  EXPECT_GT(grown, 1);
  EXPECT_GT(skipped_after_growth, 0);
  std::vector<float> state(backend::kStepStates);
  ASSERT_TRUE(fp16.replica->read_step_state(state).ok());
  EXPECT_EQ(state[backend::kSkippedSteps], skipped + skipped_after_growth);
  EXPECT_EQ(state[backend::kAppliedSteps] + state[backend::kSkippedSteps], kManySteps);
}
INSTANTIATE_TEST_SUITE_P(Models, LossScaleTest, ::testing::Values("gpt2_tiny", "llama_tiny"));

// The gradient that overflows may be one rank's only; it is the sum over all that decides, so they skip together.
TEST(LossScaleOverReplicas, AllDecideAlike) {
  const Golden golden("llama_tiny");
  const Layout layout{.name = "dp2",
                      .replicas = 2,
                      .micro = 1,
                      .precision = v1::FP16,
                      .bucket_a_unit = true,
                      .loss_scale = 16777216,
                      .growth_interval = 2};
  if (!has_devices(layout.replicas)) GTEST_SKIP() << "needs " << layout.replicas << " devices";
  const auto tokens = golden.get<int32_t>("tokens"), targets = golden.get<int32_t>("targets");
  std::vector<std::vector<float>> states(2), weights(2);
  on_all_ranks(golden, layout, [&](int rank, Replica& replica) {
    for (uint64_t step = 1; step <= 12; ++step) {
      const auto result = replica.train_step(step, share(tokens, replica), share(targets, replica), false);
      ASSERT_TRUE(result.ok()) << result.status();
      states[rank].push_back(static_cast<float>(result->loss_scale));
      states[rank].push_back(result->skipped);
    }
    const parallel::Piece piece = replica.pieces().front();
    weights[rank].resize(static_cast<size_t>(piece.slice.count));
    ASSERT_TRUE(replica.read(Replica::Kind::kMaster, piece, weights[rank]).ok());
  });
  EXPECT_EQ(states[0], states[1]);
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_EQ(states[0][1], 1);
  EXPECT_GT(std::count(states[0].begin(), states[0].end(), 0.0f), 3);  // Steps that were applied.
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* model : {"gpt2_tiny", "llama_tiny", "llama3_tiny", "qwen2_tiny"}) {
    all.push_back({model, {.name = "lanes"}});
    all.push_back({model, {.name = "sequential", .execution = Replica::Execution::kSequential}});
    all.push_back({model, {.name = "accumulation", .micro = 1}});
    all.push_back({model, {.name = "dp2", .replicas = 2, .micro = 2}});
    all.push_back({model, {.name = "dp2_buckets", .replicas = 2, .micro = 2, .bucket_a_unit = true}});
    all.push_back({model, {.name = "dp4_buckets", .replicas = 4, .micro = 1, .bucket_a_unit = true}});
    all.push_back({model, {.name = "dp2_accumulation", .replicas = 2, .micro = 1}});
    all.push_back({model, {.name = "bf16", .precision = v1::BF16}});
    all.push_back({model, {.name = "bf16_dp2", .replicas = 2, .micro = 1, .precision = v1::BF16}});
    all.push_back({model, {.name = "fp16", .precision = v1::FP16}});
    all.push_back({model, {.name = "fp16_dp2", .replicas = 2, .micro = 1, .precision = v1::FP16}});
    all.push_back({model, {.name = "tp2", .micro = 2, .tensor = 2}});
    all.push_back({model, {.name = "pp2", .micro = 1, .pipeline = 2, .schedule = "1f1b"}});
    all.push_back({model, {.name = "pp2_zb_h1", .micro = 1, .pipeline = 2, .schedule = "zb-h1"}});
    all.push_back({model, {.name = "zero1", .replicas = 2, .micro = 1, .zero = 1}});
    all.push_back({model, {.name = "zero2", .replicas = 2, .micro = 1, .bucket_a_unit = true, .zero = 2}});
    all.push_back({model, {.name = "zero3", .replicas = 2, .micro = 1, .bucket_a_unit = true, .zero = 3}});
    all.push_back({model, {.name = "tp2_pp2", .micro = 1, .tensor = 2, .pipeline = 2}});
    all.push_back({model, {.name = "bf16_tp2", .micro = 2, .precision = v1::BF16, .tensor = 2}});
    all.push_back({model, {.name = "bf16_pp2", .micro = 1, .precision = v1::BF16, .pipeline = 2}});
    all.push_back({model, {.name = "bf16_zero3", .replicas = 2, .micro = 1, .precision = v1::BF16, .zero = 3}});
  }
  return all;
}
std::vector<Case> logits_cases() {
  std::vector<Case> all;
  for (const char* model : {"gpt2_tiny", "llama_tiny", "llama3_tiny", "qwen2_tiny"}) {
    all.push_back({model, {.name = "fp32"}});
    all.push_back({model, {.name = "bf16", .precision = v1::BF16}});
    all.push_back({model, {.name = "fp16", .precision = v1::FP16}});
    all.push_back({model, {.name = "tp2", .tensor = 2}});
    all.push_back({model, {.name = "pp2", .pipeline = 2}});
    all.push_back({model, {.name = "zero3", .replicas = 2, .micro = 2, .bucket_a_unit = true, .zero = 3}});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Models, GoldenLogitsTest, ::testing::ValuesIn(logits_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace telar::train
