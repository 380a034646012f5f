#include "server/jobs/forecaster.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

#include "server/jobs/auto_layout.h"
#include "server/jobs/progress.h"
#include "worker/forecast/forecast.h"

namespace telar::server::jobs {
namespace {

constexpr std::chrono::seconds kBetweenForecasts(1);
constexpr size_t kMostKnown = 64;

void add_memory_class(v1::StageMemory& stage, const std::string& name, uint64_t bytes) {
  if (bytes == 0) return;
  v1::MemoryUse& use = *stage.add_classes();
  use.set_memory_class(name);
  use.set_bytes(bytes);
  if (name != kHostMemory) stage.set_device_bytes(stage.device_bytes() + bytes);
}

// What two jobs must have alike for one forecast to be that of both.
std::string forecast_key(const ForecastWish& wish) {
  v1::JobSpec spec = wish.spec;
  const bool documents = spec.data().reset_at_documents();
  spec.clear_data();
  spec.mutable_data()->set_reset_at_documents(documents);
  spec.mutable_optimizer()->clear_learning_rate();
  spec.clear_name();
  spec.clear_seed();
  spec.clear_tokenizer();
  spec.clear_schedule();
  spec.clear_checkpoint();
  spec.clear_restart();
  spec.clear_sample();
  spec.clear_trace();
  spec.clear_scheduling();
  spec.clear_array();
  spec.clear_output();
  std::string key = spec.SerializeAsString();
  for (const v1::Node& node : wish.nodes) key += node.SerializeAsString();
  return key;
}

}  // namespace

absl::StatusOr<v1::JobForecast> forecast_of(const v1::JobSpec& spec, const std::vector<v1::Node>& nodes) {
  const auto cluster = cluster_shape(nodes, spec.resources().kind());
  if (!cluster.ok()) return cluster.status();
  const auto found = forecast::forecast(spec, *cluster);
  if (!found.ok()) return found.status();
  v1::JobForecast told;
  told.set_step_seconds(found->step_seconds());
  told.set_tokens_per_second(found->tokens_per_second());
  told.set_mfu(found->mfu());
  for (const v1::RankForecast& rank : found->ranks()) {
    v1::StageMemory& stage = *told.add_memory();
    stage.set_pipeline_rank(rank.pipeline_rank());
    for (const v1::MemoryForecast& use : rank.memory()) add_memory_class(stage, use.memory_class(), use.bytes());
    // Where the device is the host, nobody looks for what it holds beside plans.
    if (cluster->rates().kind() == v1::ResourceSpec::GPU) {
      add_memory_class(stage, "reserved", cluster->rates().reserved_bytes());
    }
  }
  return told;
}

Forecaster::Forecaster(JobManager* manager) : manager_(manager), thread_([this] { loop(); }) {}

Forecaster::~Forecaster() {
  {
    std::lock_guard<std::mutex> hold(mutex_);
    stop_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

bool Forecaster::stopping() {
  std::lock_guard<std::mutex> hold(mutex_);
  return stop_;
}

void Forecaster::loop() {
  std::unique_lock<std::mutex> hold(mutex_);
  while (!ended_.wait_for(hold, kBetweenForecasts, [this] { return stop_; })) {
    hold.unlock();
    while (!stopping()) {
      const auto wish = manager_->forecast_wanted();
      if (!wish) break;
      manager_->set_forecast(*wish, forecast(*wish));
    }
    hold.lock();
  }
}

const v1::JobForecast& Forecaster::forecast(const ForecastWish& wish) {
  const std::string key = forecast_key(wish);
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  if (known_.size() == kMostKnown) known_.clear();
  v1::JobForecast& made = known_[key];
  auto found = forecast_of(wish.spec, wish.nodes);
  if (found.ok()) {
    made = *std::move(found);
  } else {
    spdlog::info("job {} gets no forecast: {}", wish.job, std::string(found.status().message()));
  }
  return made;
}

}  // namespace telar::server::jobs
