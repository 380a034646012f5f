// Jobs to forecast, and the hardware that they are forecast on.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "telar/v1/forecast.pb.h"
#include "worker/forecast/forecast.h"
#include "worker/forecast/rates.h"
#include "worker/plan/resolve.h"

namespace telar::forecast::testing {

struct Job {
  std::string preset = "gpt2-124m";
  uint32_t layers = 0;  // 0: the preset's.
  uint32_t sequence = 1024, micro = 1, global = 1;
  uint32_t data = 1, tensor = 1, pipeline = 1, zero = 0;
  std::string schedule;
  uint32_t virtual_stages = 0;
  v1::MemorySpec::Recompute recompute = v1::MemorySpec::NONE;
  bool overlap_tensor = true;
};

inline v1::JobSpec unresolved(const Job& job) {
  v1::JobSpec spec;
  spec.set_name("job");
  spec.mutable_model()->set_preset(job.preset);
  if (job.layers > 0) spec.mutable_model()->set_layers(job.layers);
  spec.mutable_data()->add_train("/x");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_batch()->set_global(job.global);
  spec.mutable_batch()->set_sequence_length(job.sequence);
  spec.mutable_schedule()->set_steps(1000);
  spec.mutable_resources()->set_devices(job.data * job.tensor * job.pipeline);
  return spec;
}

inline v1::JobSpec spec_of(const Job& job) {
  v1::JobSpec spec = unresolved(job);
  spec.mutable_batch()->set_micro(job.micro);
  spec.mutable_memory()->set_recompute(job.recompute);
  spec.mutable_precision()->set_compute(v1::BF16);
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  parallel.set_data(job.data);
  parallel.set_tensor(job.tensor);
  parallel.set_pipeline(job.pipeline);
  parallel.set_zero_stage(job.zero);
  parallel.set_schedule(job.schedule);
  parallel.set_virtual_stages(job.virtual_stages);
  if (!job.overlap_tensor) parallel.set_overlap_tensor(false);
  for (const plan::SpecProblem& problem : plan::resolve(spec, v1::ResourceSpec::GPU)) {
    ADD_FAILURE() << problem.field << ": " << problem.description;
  }
  return spec;
}

inline v1::ClusterShape cluster_of(uint32_t nodes, const std::string& gpu = "h200") {
  v1::ClusterShape cluster;
  cluster.set_nodes(nodes);
  cluster.set_gpu(gpu);
  EXPECT_TRUE(complete_cluster(cluster).ok());
  return cluster;
}

inline v1::Forecast forecast_of(const Job& job) {
  const v1::JobSpec spec = spec_of(job);
  auto result = forecast(spec, cluster_of((spec.resources().devices() + 7) / 8));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : v1::Forecast();
}

}  // namespace telar::forecast::testing
