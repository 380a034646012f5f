// The programs as a user runs them, on the CPU and small: their JSON is complete and adds up.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/ops.h"
#include "worker/engine/buffer.h"
#include "worker/forecast/rates.h"

namespace telar::bench {
namespace {

using nlohmann::json;
using ::testing::IsEmpty;

class ProgramsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* bin = std::getenv("TELAR_BIN_DIR");
    bin_ = bin == nullptr ? std::filesystem::read_symlink("/proc/self/exe").parent_path().string() : bin;
    std::string name = (std::filesystem::temp_directory_path() / "telar_bench_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int exit_code(const std::string& command) {
    const std::string whole = "{ " + bin_ + "/" + command + "; } > " + folder_ + "/out 2> " + folder_ + "/err";
    const int status = std::system(whole.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  json run(const std::string& command) {
    const int code = exit_code(command + " --json " + folder_ + "/json");
    EXPECT_EQ(code, 0) << read("err");
    return code == 0 ? json::parse(read("json")) : json();
  }
  std::string read(const std::string& file) {
    std::ifstream in(folder_ + "/" + file);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  std::string bin_, folder_;
};

bool positive(const json& value) { return value.is_number() && std::isfinite(value.get<double>()) && value > 0; }

TEST_F(ProgramsTest, EveryKernelIsMeasured) {
  const std::set<std::string> of_fp8 = {"amax",     "column_sums",  "fp8_product", "fp8_wgrad",
                                        "quantize", "history_amax", "push_history"};
  for (const std::string dtype : {"f32", "bf16", "f16", "fp8-delayed"}) {
    const json result =
        run("bench_kernels --shapes small --dtype " + dtype + " --ms 0 --repeats 2 --cold-mib 1 --threads 1");
    ASSERT_TRUE(result.is_object());
    std::set<std::string> missing(kernel_names().begin(), kernel_names().end());
    ASSERT_GT(missing.size(), 25u);
    for (const json& row : result["rows"]) {
      SCOPED_TRACE(row["op"].get<std::string>());
      missing.erase(row["kernel"].get<std::string>());
      for (const char* field : {"seconds", "fastest", "slowest", "rate", "share"}) {
        EXPECT_TRUE(positive(row[field])) << field << ": " << row[field];
      }
      EXPECT_GT(row["flops"].get<double>() + row["bytes"].get<double>(), 0);
      EXPECT_EQ(positive(row["share_of_equal_copy"]), row["flops"] == 0);
      EXPECT_LE(row["fastest"], row["seconds"]);
      EXPECT_LE(row["seconds"], row["slowest"]);
    }
    // cast is of weights that are not their own masters; all products of layers are in FP8 or none is.
    if (dtype == "f32") missing.erase("cast");
    missing.erase("quantize_blocks");                                                          // Takes larger models.
    for (const char* of_gathers : {"inverse_scales", "transpose"}) missing.erase(of_gathers);  // One rank has none.
    if (dtype == "fp8-delayed") {
      missing.erase("linear_gelu");
    } else {
      for (const std::string& kernel : of_fp8) missing.erase(kernel);
    }
    EXPECT_THAT(missing, IsEmpty());
    EXPECT_TRUE(positive(result["copy_bytes_per_second"]));
    EXPECT_TRUE(positive(result["product_flops_per_second"]));
  }
}

TEST_F(ProgramsTest, AFilterLeavesTheOthersOut) {
  const json result = run("bench_kernels --filter '^(copy|rope)$' --ms 0 --repeats 1 --cold-mib 1 --threads 1");
  std::set<std::string> kernels;
  for (const json& row : result["rows"]) kernels.insert(row["kernel"].get<std::string>());
  EXPECT_EQ(kernels, (std::set<std::string>{"copy", "rope"}));
}

TEST_F(ProgramsTest, AStepIsTimedAndItsPartsSumToIt) {
  for (const std::string preset : {"small-gpt2", "small-llama"}) {
    SCOPED_TRACE(preset);
    const json result =
        run("bench_step --preset " + preset + " --precision bf16 --steps 4 --warmup 2 --threads 1 --profile");
    ASSERT_TRUE(result.is_object());
    EXPECT_EQ(result["step_seconds"].size(), 4u);
    EXPECT_EQ(result["tokens_per_step"], 4 * 32 * 2);
    for (const char* field :
         {"median_seconds", "tokens_per_second", "tokens_per_second_mean", "flops_per_token", "loss"}) {
      EXPECT_TRUE(positive(result[field])) << field;
    }
    EXPECT_EQ(result["gap_seconds"].size(), 4u);
    EXPECT_GE(result["gap_share"].get<double>(), 0);
    EXPECT_LT(result["gap_share"].get<double>(), 1);
    EXPECT_FALSE(result["graph"]["captured"].get<bool>());  // The CPU has none.
    double classes = 0;
    for (const auto& [name, bytes] : result["memory"]["plan"].items()) classes += bytes.get<double>();
    EXPECT_EQ(result["memory"]["plan"].size(), static_cast<size_t>(engine::kMemoryClasses));
    EXPECT_GT(classes, 0);
    EXPECT_EQ(classes, result["memory"]["plan_total"].get<double>());

    const json& profile = result["profile"];
    const double step = profile["step_seconds"];
    double phases = 0, ops = 0;
    for (const auto& [name, seconds] : profile["phases"].items()) {
      EXPECT_GE(seconds.get<double>(), 0) << name;  // "outside" is what the ops leave of the host's time.
      phases += seconds.get<double>();
    }
    for (const char* phase : {"forward", "backward", "optimizer"}) EXPECT_TRUE(positive(profile["phases"][phase]));
    for (const json& op : profile["ops"]) {
      ops += op["seconds"].get<double>();
      EXPECT_GT(op["count"], 0);
    }
    EXPECT_NEAR(phases, step, 0.02 * step);
    EXPECT_NEAR(ops, profile["ops_seconds"], 0.02 * step);
  }
}

TEST_F(ProgramsTest, WhatIsNotUnderstoodIsRefusedByName) {
  EXPECT_EQ(exit_code("bench_kernels --shape small"), 2);
  EXPECT_THAT(read("err"), ::testing::HasSubstr("--shape"));
  EXPECT_EQ(exit_code("bench_step --steps no"), 2);
  EXPECT_THAT(read("err"), ::testing::HasSubstr("--steps: got 'no'"));
  EXPECT_EQ(exit_code("bench_step --preset gpt5"), 2);
  EXPECT_THAT(read("err"), ::testing::HasSubstr("gpt5"));
  EXPECT_EQ(exit_code("bench_kernels --backend none"), 1);
  EXPECT_THAT(read("err"), ::testing::HasSubstr("libtelar_none.so"));
}

// Three processes over the loopback, as they would be on three nodes.
TEST_F(ProgramsTest, LinksAreMeasuredForAClusterFile) {
  std::filesystem::create_directory(folder_ + "/store");
  const std::string command = "bench_rates --products --rows 64 --width 64 --heat 0 --most-mib 1 --ranks 3 --store " +
                              folder_ + "/store --rank ";
  ASSERT_EQ(exit_code(command + "1 & " + bin_ + "/" + command + "2 & " + bin_ + "/" + command + "0 --json " + folder_ +
                      "/json; code=$?; wait; exit $code"),
            0)
      << read("err");
  v1::ClusterShape cluster;
  const std::string text = read("json");
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &cluster).ok()) << text;
  const v1::LinkRates network = cluster.network();
  for (const auto* points : {&network.all_reduce(), &network.all_gather(), &network.reduce_scatter(), &network.send(),
                             &network.exchange()}) {
    ASSERT_EQ(points->size(), 2) << text;
    EXPECT_EQ((*points)[0].bytes(), 1u << 16);
    EXPECT_EQ((*points)[1].bytes(), 1u << 20);
  }
  EXPECT_EQ(network.origin(), v1::MEASURED);
  EXPECT_GT(network.step_share(), 0);
  for (const double loss : {network.slowdown(), network.send_slowdown()}) {  // A quiet machine may find none.
    EXPECT_GE(loss, 0) << text;
    EXPECT_LT(loss, 1) << text;
  }
  // The planner takes it as it is.
  cluster.set_nodes(2);
  EXPECT_EQ(forecast::complete_cluster(cluster), absl::OkStatus());
  EXPECT_EQ(cluster.rates().network().send(1).bytes_per_second(), network.send(1).bytes_per_second());
}

TEST_F(ProgramsTest, ProductsAreMeasuredAlone) {
  ASSERT_EQ(exit_code("bench_rates --products --rows 128 --width 128 --heat 0"), 0) << read("err");
  EXPECT_THAT(read("out"), ::testing::MatchesRegex("products: sustained_flops [0-9.e+]+, start_seconds [0-9.e-]+\n"));
  EXPECT_EQ(exit_code("bench_rates"), 1);
  EXPECT_THAT(read("err"), ::testing::HasSubstr("one rank has no links"));
  EXPECT_EQ(exit_code("bench_rates --rank 2 --ranks 2 --store /tmp"), 1);
  EXPECT_THAT(read("err"), ::testing::HasSubstr("--rank: must be below --ranks"));
}

}  // namespace
}  // namespace telar::bench
