// `parallel: auto` and `precision.compute: auto`: decided when the job is submitted, told in its history, stored as
// what they became.
#include "server/jobs/auto_layout.h"

#include <gmock/gmock.h>

#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using tests::small_spec;

v1::Node node_of(v1::ResourceSpec::Kind kind, const std::string& model, uint32_t devices, uint32_t domain,
                 uint64_t memory) {
  v1::Node node;
  for (uint32_t i = 0; i < devices; ++i) {
    v1::Device& device = *node.add_devices()->mutable_device();
    device.set_kind(kind);
    device.set_index(i);
    device.set_model(model);
    device.set_nvlink_domain(i / domain);
    device.set_memory_bytes(memory);
  }
  return node;
}

TEST(ClusterShape, IsWhatNodesSay) {
  const std::vector<v1::Node> nodes = {node_of(v1::ResourceSpec::GPU, "NVIDIA H200", 8, 4, uint64_t{140} << 30),
                                       node_of(v1::ResourceSpec::GPU, "NVIDIA H200", 8, 4, uint64_t{139} << 30),
                                       node_of(v1::ResourceSpec::CPU, "cpu", 2, 2, 0)};
  const auto shape = cluster_shape(nodes, v1::ResourceSpec::KIND_UNSPECIFIED);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->nodes(), 2u);
  EXPECT_EQ(shape->devices(), 8u);
  EXPECT_EQ(shape->domain(), 4u);
  EXPECT_EQ(shape->rates().name(), "h200");
  EXPECT_EQ(shape->rates().memory_bytes(), uint64_t{139} << 30);
  EXPECT_EQ(cluster_shape(nodes, v1::ResourceSpec::CPU)->rates().name(), "cpu");
}

TEST(ClusterShape, OfDevicesWithoutRatesIsRefused) {
  const auto unknown =
      cluster_shape({node_of(v1::ResourceSpec::GPU, "GPU of tomorrow", 8, 8, 0)}, v1::ResourceSpec::GPU);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(unknown.status().ToString(), HasSubstr("GPU of tomorrow"));
  EXPECT_THAT(cluster_shape({}, v1::ResourceSpec::GPU).status().ToString(), HasSubstr("no device of the kind"));
}

class AutoLayout : public tests::ManagerTest {
 protected:
  static v1::JobSpec spec(uint32_t devices) {
    v1::JobSpec one = small_spec(devices);
    one.clear_parallel();
    one.mutable_parallel()->set_auto_(true);
    one.mutable_batch()->clear_micro();
    one.mutable_batch()->set_global(16);
    return one;
  }
};

TEST_F(AutoLayout, IsDecidedAndTold) {
  connect();
  const std::string name = submit(spec(4), "r1");
  const v1::Job job = get(name);
  EXPECT_FALSE(job.spec().parallel().auto_());
  EXPECT_EQ(job.spec().parallel().data() * job.spec().parallel().tensor() * job.spec().parallel().pipeline(), 4u);
  EXPECT_GT(job.spec().batch().micro(), 0u);
  const auto page = manager_->events(name, 0, 10);
  ASSERT_FALSE(page->events.empty());
  const std::string why = page->events[0].state_change().reason();
  EXPECT_THAT(why, HasSubstr("submitted; parallel: auto chose tensor "));
  EXPECT_THAT(why, HasSubstr("fastest of those that fit"));
  // Asked again, the same job answers.
  EXPECT_EQ(submit(spec(4), "r1"), name);
  run();
  EXPECT_EQ(state(name), "RUNNING");
}

TEST_F(AutoLayout, IsTheSameEachTime) {
  connect();
  EXPECT_EQ(get(submit(spec(2))).spec().parallel().SerializeAsString(),
            get(submit(spec(2))).spec().parallel().SerializeAsString());
}

TEST_F(AutoLayout, OfATryIsShown) {
  connect();
  v1::CreateJobRequest request;
  *request.mutable_spec() = spec(2);
  request.set_validate_only(true);
  const auto job = manager_->create(request);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_FALSE(job->spec().parallel().auto_());
  EXPECT_TRUE(job->name().empty());
  EXPECT_THAT(job->message(), StartsWith("parallel: auto chose tensor "));
  *request.mutable_spec() = small_spec(2);
  EXPECT_EQ(manager_->create(request)->message(), "");
}

TEST_F(AutoLayout, WhatCannotBeDecidedIsRefused) {
  connect();
  v1::JobSpec wrong = spec(4);
  wrong.mutable_model()->set_heads(7);
  v1::CreateJobRequest request;
  *request.mutable_spec() = wrong;
  absl::Status status = manager_->create(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("spec.model.heads"));
  v1::CreateJobArrayRequest array;
  *array.mutable_spec() = spec(4);
  array.mutable_spec()->mutable_array()->set_size(2);
  status = manager_->create_array(array).status();
  EXPECT_THAT(status.ToString(), HasSubstr("telar plan"));
}

v1::JobSpec large_spec() {
  v1::JobSpec spec;
  spec.set_name("large");
  spec.mutable_model()->set_preset("llama3-8b");
  spec.mutable_model()->set_layers(8);
  spec.mutable_data()->add_train("/x");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_batch()->set_global(8);
  spec.mutable_batch()->set_micro(2);
  spec.mutable_batch()->set_sequence_length(4096);
  spec.mutable_schedule()->set_steps(1000);
  spec.mutable_precision()->set_compute(v1::AUTO);
  spec.mutable_precision()->add_keep_bf16("last");
  return spec;
}

std::vector<v1::Node> nodes_of(const std::string& model) {
  return {node_of(v1::ResourceSpec::GPU, model, 8, 8, uint64_t{140} << 30)};
}

TEST(AutoPrecision, IsFp8WhereThatPays) {
  v1::JobSpec spec = large_spec();
  EXPECT_TRUE(has_auto(spec));
  const auto why = choose_autos(spec, nodes_of("NVIDIA H200"));
  ASSERT_TRUE(why.ok()) << why.status();
  EXPECT_FALSE(has_auto(spec));
  EXPECT_EQ(spec.precision().compute(), v1::FP8);
  EXPECT_EQ(spec.precision().keep_bf16(0), "last");
  EXPECT_THAT(*why, AllOf(StartsWith("precision: auto chose fp8: a step takes "), HasSubstr(" ms in bf16 and ")));
}

TEST(AutoPrecision, IsBf16WhereItDoesNot) {
  v1::JobSpec spec = large_spec();
  spec.mutable_model()->set_hidden(256);
  spec.mutable_model()->set_heads(4);
  spec.mutable_model()->set_kv_heads(4);
  spec.mutable_model()->set_head_dim(64);
  spec.mutable_model()->set_ffn(512);
  spec.mutable_resources()->set_devices(16);  // More than there are: whether it may wait is asked later.
  spec.mutable_batch()->set_global(32);
  const auto why = choose_autos(spec, nodes_of("NVIDIA H200"));
  ASSERT_TRUE(why.ok()) << why.status();
  EXPECT_EQ(spec.precision().compute(), v1::BF16);
  EXPECT_EQ(spec.precision().keep_bf16_size(), 0);
  EXPECT_THAT(*why, AllOf(StartsWith("precision: auto chose bf16: a step takes "), HasSubstr(" ms in fp8, ")));
}

TEST(AutoPrecision, OfDevicesWithoutRatesIsTheDefault) {
  v1::JobSpec spec = large_spec();
  auto why = choose_autos(spec, nodes_of("GPU of tomorrow"));
  ASSERT_TRUE(why.ok()) << why.status();
  EXPECT_EQ(spec.precision().compute(), v1::BF16);
  EXPECT_THAT(*why, HasSubstr("no rates are known"));
  spec = large_spec();
  spec.mutable_parallel()->set_auto_(true);
  EXPECT_THAT(choose_autos(spec, nodes_of("GPU of tomorrow")).status().ToString(), HasSubstr("GPU of tomorrow"));
}

TEST(AutoPrecision, BesideALayout) {
  v1::JobSpec spec = large_spec();
  spec.mutable_resources()->set_devices(2);
  spec.mutable_parallel()->set_auto_(true);
  const auto why = choose_autos(spec, nodes_of("NVIDIA H200"));
  ASSERT_TRUE(why.ok()) << why.status();
  EXPECT_FALSE(has_auto(spec));
  EXPECT_EQ(spec.precision().compute(), v1::FP8);
  EXPECT_THAT(*why, AllOf(StartsWith("precision: auto chose fp8: "), HasSubstr("; parallel: auto chose tensor ")));
}

TEST(AutoPrecision, MistakesBesideItAreTold) {
  v1::JobSpec spec = large_spec();
  spec.mutable_precision()->add_keep_bf16("40");
  const absl::Status status = choose_autos(spec, nodes_of("NVIDIA H200")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("'40' is no layer"));
}

TEST_F(AutoLayout, PrecisionIsToldInTheHistory) {
  connect();
  v1::JobSpec one = small_spec(2);
  one.mutable_precision()->set_compute(v1::AUTO);
  const std::string name = submit(one);
  EXPECT_EQ(get(name).spec().precision().compute(), v1::FP32);
  EXPECT_EQ(manager_->events(name, 0, 10)->events[0].state_change().reason(),
            "submitted; precision: auto chose fp32: fp8 cannot be: cpu multiplies no fp8");
  v1::CreateJobArrayRequest array;
  *array.mutable_spec() = one;
  array.mutable_spec()->mutable_array()->set_size(2);
  EXPECT_THAT(manager_->create_array(array).status().ToString(), HasSubstr("telar plan"));
}

}  // namespace
}  // namespace telar::server::jobs
