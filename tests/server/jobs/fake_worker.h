// A worker without processes: heartbeats into a job manager, and does with its ranks what the answers say, at once.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "server/jobs/job_manager.h"

namespace telar::tests {

class FakeWorker {
 public:
  using Key = std::tuple<std::string, uint64_t, uint32_t>;

  FakeWorker(std::string node, uint32_t devices) : node_(std::move(node)), devices_(devices) {}

  absl::Status register_at(server::jobs::JobManager& manager) {
    v1::RegisterNodeRequest request;
    request.set_node(node_);
    request.set_incarnation(incarnation_);
    request.set_listen_host("127.0.0.1");
    request.set_metrics_address("127.0.0.1:9100");
    request.set_spare(spare);
    request.mutable_labels()->insert(labels.begin(), labels.end());
    for (uint32_t i = 0; i < devices_; ++i) {
      v1::Device* device = request.add_devices();
      device->set_kind(v1::ResourceSpec::CPU);
      device->set_index(i);
      device->set_model("cpu");
    }
    return manager.register_node(request).status();
  }

  v1::HeartbeatRequest next_heartbeat() {
    v1::HeartbeatRequest request;
    request.set_node(node_);
    request.set_incarnation(incarnation_);
    request.set_sequence(++sequence_);
    for (const auto& [key, status] : ranks_) *request.add_ranks() = status;
    for (const auto& [device, one] : health) *request.add_health() = one;
    if (tells_ends) add_receipts(request);
    request.set_leave(farewell);
    return request;
  }

  // One heartbeat and its answer.
  absl::Status beat(server::jobs::JobManager& manager) {
    if (absl::Status status = manager.heartbeat(next_heartbeat()); !status.ok()) return status;
    follow(manager.assignments(node_));
    return absl::OkStatus();
  }

  void follow(const v1::HeartbeatResponse& response) {
    std::map<Key, v1::RankStatus> named;
    for (const v1::Assignment& assignment : response.assignments()) {
      const v1::RankPlan& plan = assignment.plan();
      const Key key{plan.job(), plan.epoch(), plan.rank()};
      const auto known = ranks_.find(key);
      if (known != ranks_.end()) named[key] = known->second;
      if (assignment.desired() == v1::Assignment::RUN && known == ranks_.end() && starts) start(plan, named[key]);
      if (assignment.desired() == v1::Assignment::STOP && known != ranks_.end() && obeys_stop) stop(named[key]);
      if (assignment.desired() == v1::Assignment::STOP && known == ranks_.end()) never_start(plan, named[key]);
    }
    // The rest is killed and forgotten, but for what does not die.
    for (const auto& [key, status] : ranks_) {
      const bool left = std::any_of(residues.begin(), residues.end(), [](const auto& one) { return one.second != 0; });
      if (left && status.state() == v1::RankPlacement::EXITED) named.emplace(key, status);
    }
    ranks_ = std::move(named);
  }

  v1::RankStatus& rank(const std::string& job, uint64_t epoch, uint32_t number) {
    return ranks_.at({job, epoch, number});
  }
  bool has(const std::string& job, uint64_t epoch, uint32_t number) const {
    return ranks_.count({job, epoch, number}) != 0;
  }
  // Every rank here ends well.
  void finish_all() {
    for (auto& [key, status] : ranks_) {
      status.set_state(v1::RankPlacement::EXITED);
      status.set_finished(true);
      status.set_output_shipped(true);
    }
  }
  static void die(v1::RankStatus& status, int exit_code, v1::FailureClass failure_class, const std::string& message) {
    status.set_state(v1::RankPlacement::EXITED);
    status.set_exit_code(exit_code);
    status.set_failure_class(failure_class);
    status.set_message(message);
    status.set_output_shipped(true);
  }
  void reboot(const std::string& incarnation) {
    incarnation_ = incarnation;
    sequence_ = 0;
    ranks_.clear();
  }

  // Health of its device, made on first use.
  v1::DeviceHealth& health_of(uint32_t index) {
    v1::DeviceHealth& one = health[index];
    one.mutable_device()->set_kind(v1::ResourceSpec::CPU);
    one.mutable_device()->set_index(index);
    if (one.state() == v1::DeviceHealth::STATE_UNSPECIFIED) one.set_state(v1::DeviceHealth::HEALTHY);
    return one;
  }
  // One more fault of a device, counted under its code.
  void strike(uint32_t index, const std::string& code) {
    v1::DeviceHealth& one = health_of(index);
    for (v1::DeviceFault& fault : *one.mutable_faults()) {
      if (fault.code() != code) continue;
      fault.set_count(fault.count() + 1);
      return;
    }
    v1::DeviceFault* fault = one.add_faults();
    fault->set_code(code);
    fault->set_count(1);
  }
  // Something that is left on a device by every epoch that ends here; pid 0: gone again.
  void leave(uint32_t index, int pid) { residues[index] = pid; }

  std::map<uint32_t, v1::DeviceHealth> health;
  std::map<uint32_t, int> residues;
  bool tells_ends = true;  // With false it sends no receipts.
  bool obeys_stop = true;  // With false, a rank told to stop goes on.
  bool spare = false;
  v1::HeartbeatRequest::Leave farewell = v1::HeartbeatRequest::LEAVE_UNSPECIFIED;
  std::map<std::string, std::string> labels;
  bool starts = true;                 // With false, nothing it is told to run appears.
  std::map<Key, v1::RankPlan> plans;  // All that it was ever told to run.

 private:
  void start(const v1::RankPlan& plan, v1::RankStatus& status) {
    plans[{plan.job(), plan.epoch(), plan.rank()}] = plan;
    status.set_job(plan.job());
    status.set_epoch(plan.epoch());
    status.set_rank(plan.rank());
    status.set_state(v1::RankPlacement::RUNNING);
    status.set_pid(1000 + static_cast<int>(plan.rank()));
  }
  void add_receipts(v1::HeartbeatRequest& request) const {
    std::map<std::pair<std::string, uint64_t>, bool> over;
    for (const auto& [key, status] : ranks_) {
      bool& all = over.try_emplace({status.job(), status.epoch()}, true).first->second;
      all = all && status.state() == v1::RankPlacement::EXITED;
    }
    for (const auto& [epoch, all] : over) {
      if (!all) continue;
      v1::Receipt* receipt = request.add_receipts();
      receipt->set_job(epoch.first);
      receipt->set_epoch(epoch.second);
      for (const auto& [index, pid] : residues) {
        if (pid == 0) continue;
        v1::Residue* residue = receipt->add_residues();
        residue->mutable_device()->set_kind(v1::ResourceSpec::CPU);
        residue->mutable_device()->set_index(index);
        residue->set_pid(pid);
        residue->set_message("cpu:" + std::to_string(index) + ": pid " + std::to_string(pid) + " does not die");
      }
      receipt->set_clean(receipt->residues().empty());
    }
  }
  static void never_start(const v1::RankPlan& plan, v1::RankStatus& status) {
    status.set_job(plan.job());
    status.set_epoch(plan.epoch());
    status.set_rank(plan.rank());
    die(status, 10, v1::FAILURE_CLASS_UNSPECIFIED, "stopped before it was started");
  }
  static void stop(v1::RankStatus& status) {
    if (status.state() != v1::RankPlacement::EXITED) {
      status.set_state(v1::RankPlacement::EXITED);
      status.set_exit_code(10);
    }
    status.set_output_shipped(true);
  }

  const std::string node_;
  const uint32_t devices_;
  std::string incarnation_ = "1";
  uint64_t sequence_ = 0;
  std::map<Key, v1::RankStatus> ranks_;
};

// A spec that resolves, for `devices` CPU ranks in data parallel.
inline v1::JobSpec small_spec(uint32_t devices) {
  v1::JobSpec spec;
  spec.set_name("small");
  spec.mutable_model()->set_architecture(v1::GPT2);
  spec.mutable_model()->set_layers(2);
  spec.mutable_model()->set_hidden(32);
  spec.mutable_model()->set_heads(2);
  spec.mutable_data()->add_train("/data/text.txt");
  spec.mutable_batch()->set_global(12);
  spec.mutable_batch()->set_sequence_length(16);
  spec.mutable_schedule()->set_steps(100);
  spec.mutable_resources()->set_devices(devices);
  spec.mutable_resources()->set_kind(v1::ResourceSpec::CPU);
  return spec;
}

}  // namespace telar::tests
