#include "server/rpc/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "common/process.h"
#include "common/version.h"
#include "server/jobs/admission.h"

namespace telar::server::rpc {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets kCallSeconds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10};
const Buckets kWaitSeconds = {0.1, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600};

std::string reason_of(v1::FailureClass cause) {
  return cause == v1::FAILURE_CLASS_UNSPECIFIED ? "INTERRUPTED" : v1::FailureClass_Name(cause);
}

MetricFamily gauge_family(const std::string& name, const std::string& help) {
  return {name, help, prometheus::MetricType::Gauge, {}};
}

void add(MetricFamily& family, std::vector<ClientMetric::Label> labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  family.metric.push_back(std::move(metric));
}

void add_jobs(const jobs::Census& census, std::vector<MetricFamily>& out) {
  MetricFamily counts = gauge_family("telar_jobs", "Jobs by state");
  for (int state = v1::Job::QUEUED; state <= v1::Job::CANCELLED; ++state) {
    const auto found = census.states.find(static_cast<v1::Job::State>(state));
    add(counts, {{"state", v1::Job::State_Name(static_cast<v1::Job::State>(state))}},
        found == census.states.end() ? 0 : static_cast<double>(found->second));
  }
  MetricFamily info = gauge_family("telar_job_info", "Constant 1; what a live job is");
  MetricFamily states = gauge_family("telar_job_state", "1 for the state that a live job is in");
  MetricFamily times = gauge_family("telar_job_time_seconds", "Where a live job's time went; the kinds sum to its age");
  MetricFamily steps = gauge_family("telar_job_step", "Optimizer steps done by a live job");
  MetricFamily ratios = gauge_family(
      "telar_job_straggler_ratio", "Largest own time of a rank over its gang's median, of live jobs where it is known");
  for (const jobs::LiveJob& job : census.live) {
    add(info,
        {{"job_id", job.id},
         {"name", job.name},
         {"model", job.model},
         {"devices", std::to_string(job.data * job.tensor * job.pipeline)},
         {"kind", jobs::kind_name(job.kind)},
         {"dp", std::to_string(job.data)},
         {"tp", std::to_string(job.tensor)},
         {"pp", std::to_string(job.pipeline)}},
        1);
    add(states, {{"job_id", job.id}, {"state", v1::Job::State_Name(job.state)}}, 1);
    add(steps, {{"job_id", job.id}}, static_cast<double>(job.step));
    if (job.straggler_ratio > 0) add(ratios, {{"job_id", job.id}}, job.straggler_ratio);
    const v1::Goodput& goodput = job.goodput;
    const auto spent = [&](const char* kind, double seconds) {
      add(times, {{"job_id", job.id}, {"kind", kind}}, seconds);
    };
    spent("queued", goodput.queued_seconds());
    spent("starting", goodput.starting_seconds());
    spent("productive", goodput.productive_seconds());
    spent("lost", goodput.lost_seconds());
    spent("stalled", goodput.stalled_seconds());
    spent("recovering", goodput.recovering_seconds());
    spent("ending", goodput.ending_seconds());
  }
  for (MetricFamily* family : {&counts, &info, &states, &steps, &times, &ratios}) out.push_back(std::move(*family));
}

// Of each pipeline rank, as ranks of one are alike; ranks tell of what they have by telar_memory_bytes.
void add_forecasts(const jobs::Census& census, std::vector<MetricFamily>& out) {
  MetricFamily bytes = gauge_family("telar_memory_forecast_bytes",
                                    "What a rank of a placed job should need, by class and place in the pipeline");
  for (const jobs::LiveJob& job : census.live) {
    for (const v1::StageMemory& stage : job.forecast.memory()) {
      for (const v1::MemoryUse& use : stage.classes()) {
        add(bytes, {{"job_id", job.id}, {"pp", std::to_string(stage.pipeline_rank())}, {"class", use.memory_class()}},
            static_cast<double>(use.bytes()));
      }
    }
  }
  out.push_back(std::move(bytes));
}

void add_nodes(const std::vector<v1::Node>& nodes, std::vector<MetricFamily>& out) {
  std::map<v1::Node::State, int> by_state = {
      {v1::Node::READY, 0}, {v1::Node::UNKNOWN, 0}, {v1::Node::LOST, 0}, {v1::Node::OFFLINE, 0}};
  std::map<std::pair<v1::ResourceSpec::Kind, std::string>, int> devices;
  for (const auto kind : {v1::ResourceSpec::CPU, v1::ResourceSpec::GPU}) {
    for (const char* state : {"free", "used", "away", "quarantined"}) devices[{kind, state}] = 0;
  }
  for (const v1::Node& node : nodes) {
    ++by_state[node.state()];
    for (const v1::DeviceStatus& device : node.devices()) {
      const char* ready = !device.job().empty() ? "used" : device.quarantine().empty() ? "free" : "quarantined";
      ++devices[{device.device().kind(), node.state() == v1::Node::READY ? ready : "away"}];
    }
  }
  MetricFamily node_counts = gauge_family("telar_nodes", "Nodes by state");
  for (const auto& [state, count] : by_state) add(node_counts, {{"state", v1::Node::State_Name(state)}}, count);
  MetricFamily device_counts = gauge_family("telar_devices", "Devices by kind; away: on a node that does not answer");
  for (const auto& [key, count] : devices) {
    add(device_counts, {{"kind", jobs::kind_name(key.first)}, {"state", key.second}}, count);
  }
  out.push_back(std::move(node_counts));
  out.push_back(std::move(device_counts));
}

}  // namespace

Metrics::Metrics()
    : restarts_(BuildCounter()
                    .Name("telar_job_restarts_total")
                    .Help("Restarts of jobs by the failure class that caused them")
                    .Register(registry_)),
      hangs_(BuildCounter()
                 .Name("telar_job_hangs_total")
                 .Help("Gangs that hung; named: it is known which rank the others waited for")
                 .Register(registry_)),
      stragglers_(BuildCounter()
                      .Name("telar_job_stragglers_total")
                      .Help("Times that a job got other slow ranks than before")
                      .Register(registry_)
                      .Add({})),
      calls_(BuildHistogram().Name("telar_rpc_seconds").Help("Time to answer a call, by method").Register(registry_)),
      queue_wait_(BuildHistogram()
                      .Name("telar_queue_wait_seconds")
                      .Help("Time from entering the queue to placement")
                      .Register(registry_)
                      .Add({}, kWaitSeconds)),
      commits_(BuildHistogram()
                   .Name("telar_store_commit_seconds")
                   .Help("Time to make one change durable")
                   .Register(registry_)
                   .Add({}, kCallSeconds)),
      transactions_(BuildCounter()
                        .Name("telar_store_transactions_total")
                        .Help("Writes to the store that were waited for; one may hold many changes")
                        .Register(registry_)
                        .Add({})),
      rounds_(BuildHistogram()
                  .Name("telar_scheduler_round_seconds")
                  .Help("Time of one round of the scheduler, with its writes to the store")
                  .Register(registry_)
                  .Add({}, kCallSeconds)),
      missing_log_(BuildCounter()
                       .Name("telar_log_missing_bytes_total")
                       .Help("Bytes of ranks' logs that never came or were removed for want of room")
                       .Register(registry_)
                       .Add({})) {
  BuildGauge()
      .Name("telar_build_info")
      .Help("Constant 1; what runs")
      .Register(registry_)
      .Add({{"component", "coordinator"}, {"version", version()}, {"build_type", TELAR_BUILD_TYPE}})
      .Set(1);
  auto& holds = BuildHistogram()
                    .Name("telar_manager_hold_seconds")
                    .Help("How long the lock that all calls wait for was held at once, by what for")
                    .Register(registry_);
  for (size_t i = 0; i < holds_.size(); ++i) holds_[i] = &holds.Add({{"holder", jobs::kDoings[i]}}, kCallSeconds);
  // A series that begins at its first failure shows no increase to rate().
  for (int cause = 0; cause < v1::FailureClass_ARRAYSIZE; ++cause) {
    restarts_.Add({{"reason", reason_of(static_cast<v1::FailureClass>(cause))}});
  }
  for (const char* named : {"true", "false"}) hangs_.Add({{"named", named}});
}

void Metrics::on_restart(v1::FailureClass cause) { restarts_.Add({{"reason", reason_of(cause)}}).Increment(); }
void Metrics::on_placed(double queue_seconds) { queue_wait_.Observe(queue_seconds); }
void Metrics::on_hang(bool named) { hangs_.Add({{"named", named ? "true" : "false"}}).Increment(); }
void Metrics::on_straggler() { stragglers_.Increment(); }
void Metrics::on_commit(double seconds) { commits_.Observe(seconds); }
void Metrics::on_transaction() { transactions_.Increment(); }
void Metrics::on_round(double seconds) { rounds_.Observe(seconds); }
void Metrics::on_hold(jobs::Doing doing, double seconds) { holds_[static_cast<size_t>(doing)]->Observe(seconds); }
void Metrics::on_call(const std::string& method, double seconds) {
  calls_.Add({{"method", method}}, kCallSeconds).Observe(seconds);
}

std::string Metrics::render(const jobs::JobManager& manager) {
  std::vector<MetricFamily> families = registry_.Collect();
  const jobs::Census census = manager.census();
  add_jobs(census, families);
  add_forecasts(census, families);
  add_nodes(manager.nodes(), families);
  for (const auto& source : sources_) {
    for (MetricFamily& family : source()) families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace telar::server::rpc
