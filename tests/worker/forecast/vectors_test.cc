// Figures that others published, of models that nobody trains on a laptop: sizes of weights and activations, and the
// time of a step on A100s by the rates of a calibrated peer.
#include <cstdio>
#include <cstdlib>

#include "tests/worker/forecast/specs.h"
#include "worker/plan/run_shape.h"

namespace telar::forecast {
namespace {

v1::ModelSpec resolved_preset(const std::string& name, uint32_t sequence) {
  return testing::spec_of({.preset = name, .sequence = sequence}).model();
}

TEST(VectorsTest, PublishedParameterCounts) {
  const std::pair<const char*, uint64_t> kCounts[] = {{"gpt2-124m", 124'439'808},        {"gpt2-1.5b", 1'557'611'200},
                                                      {"llama2-7b", 6'738'415'616},      {"llama2-70b", 68'976'648'192},
                                                      {"llama3-8b", 8'030'261'248},      {"llama3-70b", 70'553'706'496},
                                                      {"llama3.1-405b", 405'853'388'800}};
  for (const auto& [name, count] : kCounts)
    EXPECT_EQ(plan::parameter_count(resolved_preset(name, 1024)), count) << name;
}

// The models of Narayanan et al. 2021 and Korthikanti et al. 2022, as trained there: s = 2048, V = 51200.
struct Published {
  const char* name;
  uint32_t hidden, heads, layers, pipeline, virtual_stages, micro, global;
  double billions;           // Parameters.
  double state_gib;          // 18 bytes of each weight of a layer's products, on a rank.
  double activations_gib;    // Of the first stage, TP + SP + selective recompute.
  double selective_seconds;  // Measured there on A100s, and
  double calculon_seconds;   // what Calculon makes of it with its file for A100s.
};
constexpr Published kPublished[] = {
    {"22B", 6144, 64, 48, 1, 1, 4, 4, 22.07, 45.5625, 9.5625, 1.10, 1.14},
    {"175B", 12288, 96, 96, 8, 3, 1, 64, 174.6, 45.5625, 12.3515625, 13.75, 13.64},
    {"530B", 20480, 128, 105, 35, 3, 1, 280, 529.6, 31.640625, 23.076171875, 37.83, 34.47},
    {"1T", 25600, 160, 128, 64, 1, 1, 512, 1008.0, 32.958984375, 26.5625, 71.49, 66.04},
};
constexpr double kGibibyte = 1 << 30;

v1::JobSpec spec_of(const Published& one, uint32_t global) {
  v1::JobSpec spec;
  spec.set_name("job");
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_architecture(v1::GPT2);
  model.set_hidden(one.hidden);
  model.set_heads(one.heads);
  model.set_layers(one.layers);
  model.set_vocab(51200);
  spec.mutable_data()->add_train("/x");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_batch()->set_sequence_length(2048);
  spec.mutable_batch()->set_micro(one.micro);
  spec.mutable_batch()->set_global(global);
  spec.mutable_schedule()->set_steps(1);
  spec.mutable_resources()->set_devices(8 * one.pipeline);
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  parallel.set_tensor(8);
  parallel.set_overlap_tensor(false);
  parallel.set_pipeline(one.pipeline);
  parallel.set_virtual_stages(one.virtual_stages);
  for (const plan::SpecProblem& problem : plan::resolve(spec, v1::ResourceSpec::GPU)) {
    ADD_FAILURE() << problem.field << ": " << problem.description;
  }
  return spec;
}

TEST(VectorsTest, MegatronModelsHaveThePublishedSizes) {
  for (const Published& one : kPublished) {
    const double count = static_cast<double>(plan::parameter_count(spec_of(one, one.global).model()));
    EXPECT_NEAR(count / 1e9, one.billions, 0.0005 * one.billions) << one.name;
  }
}

// Exact: weights, gradients and optimizer state of the products of the layers that a rank in the middle has.
TEST(VectorsTest, MegatronModelsHaveThePublishedState) {
  for (const Published& one : kPublished) {
    const int middle = static_cast<int>(one.pipeline) / 2;
    const plan::RunShape shape =
        plan::run_shape(spec_of(one, one.pipeline * one.micro),
                        {.pp_size = static_cast<int>(one.pipeline), .tp_size = 8, .pp = middle});
    double elements = 0;
    for (const parallel::ParameterGroup& group : shape.layout.groups()) {
      if (group.decays && group.name.starts_with("layers.")) elements += static_cast<double>(group.shape.elements());
    }
    EXPECT_EQ(elements * 18 / kGibibyte, one.state_gib) << one.name;
  }
}

double bytes_of(const v1::RankForecast& rank, const std::string& memory_class) {
  for (const v1::MemoryForecast& memory : rank.memory()) {
    if (memory.memory_class() == memory_class) return static_cast<double>(memory.bytes());
  }
  return 0;
}

// sbh 34 / t a layer, less the masks of two dropouts (sbh a byte each), which we do not have; and the statistics of two
// norms and of the softmax, which they leave out. Exact.
TEST(VectorsTest, ALayerKeepsThePublishedActivations) {
  for (const Published& one : kPublished) {
    const auto activations = [&](uint32_t layers) {
      Published small = one;
      small.layers = layers;
      small.pipeline = small.virtual_stages = 1;
      const auto result = forecast(spec_of(small, one.micro), testing::cluster_of(1));
      EXPECT_TRUE(result.ok()) << result.status();
      return bytes_of(result->ranks(0), "activations");
    };
    const double tokens = 2048.0 * one.micro / 8;
    const double statistics = tokens * 4 * 4 + tokens * one.heads * 4;
    const double layer = activations(4) - activations(3);
    EXPECT_EQ(layer, tokens * one.hidden * 32 + statistics) << one.name;
    const double in_flight =
        one.layers * (one.virtual_stages == 1 ? 1 : 1 + (one.pipeline - 1.0) / (one.pipeline * one.virtual_stages));
    const double published = one.activations_gib * kGibibyte / 34 * 32;
    EXPECT_NEAR((layer - statistics) * in_flight, published, 1e-9 * published) << one.name;
  }
}

// The first stage of the whole step, as it is planned: the published bytes, and what one layer's backward works with.
TEST(VectorsTest, AFirstStageKeepsThePublishedActivations) {
  const Published& one = kPublished[1];
  const auto result = forecast(spec_of(one, one.global), testing::cluster_of(8));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(bytes_of(result->ranks(0), "activations") / kGibibyte, one.activations_gib * 32 / 34,
              0.05 * one.activations_gib);
}

// A Llama's layer: sbh (12 + 4 kv/a) + 6 sbf, all split over the tensor ranks. Exact but for statistics.
TEST(VectorsTest, ALlamaLayerKeepsWhatIsDerived) {
  for (const uint32_t tensor : {1u, 4u}) {
    const auto activations = [&](uint32_t layers) {
      const v1::Forecast result = testing::forecast_of(
          {.preset = "llama3-8b", .layers = layers, .sequence = 4096, .micro = 2, .global = 2, .tensor = tensor});
      return bytes_of(result.ranks(0), "activations");
    };
    const double tokens = 8192.0 / tensor;
    EXPECT_EQ(activations(4) - activations(3),
              tokens * (4096 * (12 + 4 * 8.0 / 32) + 6 * 14336) + tokens * 2 * 4 + tokens * 32 * 4);
  }
}

// Calculon's file for A100s with 80 GB, as rates of ours: products at 95 % of 312 TFLOP/s, memory at 90 % of 2,048
// GB/s, NVLink at 60 % of 300 GB/s where a ring's step costs 1.5, InfiniBand at 90 % of 25 GB/s. Nothing runs beside
// anything there: a product's bytes come on top of its FLOPs, and transfers stop what computes. Attention was not
// fused: a score is written, read and masked over and over (13 bytes of traffic forward, 19 backward, and 13 once more
// where it is recomputed), which as a rate of the causal half that we count is what stands below.
v1::ClusterShape a100s(const Published& one) {
  v1::ClusterShape cluster = testing::cluster_of(one.pipeline);
  v1::Rates& rates = *cluster.mutable_rates();
  rates.set_name("a100");
  rates.set_memory_bytes(uint64_t{80} << 30);
  rates.set_peak_flops_16(312e12);
  const double copy = 0.9 * 2048e9, h = one.hidden;
  // Bytes a FLOP of a product are 1/M + 1/N + 1/K; qkv, output, up and down have 3, 1, 4 and 4 parts of the FLOPs.
  const auto bytes = [&](double n, double k) { return 1 / (2048.0 * one.micro) + 1 / n + 1 / k; };
  const double a_flop = (3 * bytes(3 * h / 8, h) + bytes(h, h / 8) + 4 * bytes(h / 2, h) + 4 * bytes(h, h / 2)) / 12;
  v1::ProductRates& products = *rates.mutable_products();
  products.set_sustained_flops(1 / (1 / (0.95 * 312e12) + a_flop / copy));
  products.set_peak_flops(312e12);
  products.set_depth_overhead(0);
  products.set_units(108);
  products.set_accumulate_share(1);
  products.clear_start_seconds();
  rates.set_copy_bytes_per_second(copy);
  rates.clear_kernels();
  rates.clear_attention();
  const double dim = h / one.heads, product = 4 * dim / (0.9 * 312e12);
  v1::AttentionRate& rate = *rates.add_attention();
  rate.set_head_dim(static_cast<uint32_t>(dim));
  rate.set_forward_flops(2 * dim / (product + 13 / copy));
  rate.set_backward_flops(5 * dim / (3 * product + (19 + 13) / copy));
  rates.set_kernel_seconds(0);
  rates.clear_waiting_power();
  rates.set_transfers_wait_for_kernels(false);
  const auto flat = [](v1::LinkRates& links, double ring, double send, double slowdown) {
    links.set_latency_seconds(2e-6);
    links.set_slowdown(slowdown);
    links.clear_step_share();
    links.set_send_slowdown(0);
    for (auto* points : {links.mutable_all_reduce(), links.mutable_all_gather(), links.mutable_reduce_scatter(),
                         links.mutable_send(), links.mutable_exchange()}) {
      points->Clear();
      points->Add()->set_bytes(1024);
      const bool sends = points == links.mutable_send() || points == links.mutable_exchange();
      (*points)[0].set_bytes_per_second(sends ? send : ring);
    }
  };
  flat(*rates.mutable_domain(), 0.6 * 300e9 / 1.5, 0.6 * 300e9, 0.999);
  flat(*rates.mutable_network(), 0.9 * 25e9, 0.9 * 25e9, 0);
  EXPECT_TRUE(check_rates(rates).ok()) << check_rates(rates);
  return cluster;
}

// The two large ones take half a minute: TELAR_FORECAST_LONG=1.
TEST(VectorsTest, StepsOnA100sTakeWhatACalibratedPeerSays) {
  const bool all = std::getenv("TELAR_FORECAST_LONG") != nullptr;
  for (const Published& one : kPublished) {
    if (!all && one.pipeline > 8) continue;
    const auto result = forecast(spec_of(one, one.global), a100s(one));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_NEAR(result->step_seconds() / one.calculon_seconds, 1, 0.1)
        << one.name << ": " << result->step_seconds() << " s, Calculon " << one.calculon_seconds << ", measured "
        << one.selective_seconds;
    if (std::getenv("TELAR_FORECAST_TABLE") != nullptr) {
      std::printf("| %s | %.2f s | %.2f s | %.2f s |\n", one.name, one.selective_seconds, one.calculon_seconds,
                  result->step_seconds());
    }
  }
}

}  // namespace
}  // namespace telar::forecast
