// A cluster of numbers for the rounds of the scheduler: jobs that run for as long as the test says, time that the test
// moves. Checks behind every round what must always hold.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/cluster/times.h"
#include "server/jobs/round.h"
#include "server/jobs/waiting.h"

namespace telar::tests {

namespace jobs = server::jobs;
namespace cluster = server::cluster;

struct Wish {
  uint32_t devices = 1;
  uint32_t tensor = 1;
  std::string queue = "default";
  int32_t priority = 0;
  uint64_t limit = 0;  // Seconds.
  double runs = 1e9;   // Seconds until it ends by itself; a job with a limit never runs longer.
  std::string array = {};
  uint32_t array_most = 0;
  bool preemptible = true;
};

class ToyCluster {
 public:
  // Nodes "n000", "n001", ... of so many devices, each in one NVLink domain.
  explicit ToyCluster(const std::vector<uint32_t>& nodes, v1::ResourceSpec::Kind kind = v1::ResourceSpec::GPU) {
    for (const uint32_t devices : nodes) {
      cluster::Inventory::Node node;
      const std::string number = std::to_string(inventory.nodes.size());
      node.name = "n" + std::string(3 - std::min<size_t>(3, number.size()), '0') + number;
      node.ready = true;
      node.first = static_cast<uint32_t>(inventory.devices.size());
      node.count = devices;
      for (uint32_t i = 0; i < devices; ++i) {
        inventory.devices.push_back({.node = static_cast<uint32_t>(inventory.nodes.size()),
                                     .domain = inventory.domains,
                                     .kind = kind,
                                     .index = i});
      }
      ++inventory.domains;
      inventory.nodes.push_back(std::move(node));
    }
  }

  std::string submit(const Wish& wish) {
    const std::string id = "j" + std::to_string(++last_order);
    server::jobs::JobRecord record;
    v1::Job& job = *record.mutable_job();
    job.set_name("projects/p/jobs/" + id);
    job.set_state(v1::Job::QUEUED);
    v1::JobSpec& spec = *job.mutable_spec();
    spec.mutable_resources()->set_devices(wish.devices);
    spec.mutable_resources()->set_kind(v1::ResourceSpec::GPU);
    spec.mutable_parallel()->set_tensor(wish.tensor);
    spec.mutable_parallel()->set_data(wish.devices / wish.tensor);
    spec.mutable_parallel()->set_pipeline(1);
    spec.mutable_scheduling()->set_queue(wish.queue);
    spec.mutable_scheduling()->set_priority(wish.priority);
    spec.mutable_scheduling()->set_time_limit_seconds(wish.limit);
    spec.mutable_scheduling()->set_preemptible(wish.preemptible);
    job.set_array(wish.array);
    spec.mutable_array()->set_max_running(wish.array_most);
    record.set_order(last_order);
    *record.mutable_queue_time() = cluster::to_timestamp(now);
    records[id] = record;
    wishes[id] = wish;
    line.put(record);
    return id;
  }

  jobs::RoundResult plan() {
    jobs::RoundInput input;
    input.now = now;
    input.patience = patience;
    input.inventory = &inventory;
    input.queues = &queues;
    input.line = &line;
    const std::vector<jobs::Holder> holders = this->holders();
    input.holders = &holders;
    input.held_back = &held_back;
    std::set<uint64_t> backing_off;
    for (const auto& [id, record] : records) {
      if (now < cluster::to_wall(record.job().retry_time())) backing_off.insert(record.order());
    }
    input.backing_off = &backing_off;
    return jobs::plan_round(input);
  }

  // Plans and does it: jobs start, victims are gone one round later and wait again.
  jobs::RoundResult round() {
    for (const std::string& id : std::vector<std::string>(stopping.begin(), stopping.end())) leave(id, true);
    jobs::RoundResult result = plan();
    for (const jobs::Preemption& one : result.preemptions) {
      EXPECT_TRUE(running.count(one.victim)) << one.victim;
      EXPECT_TRUE(stopping.insert(one.victim).second) << one.victim << " is told twice";
      ++preempted[one.victim];
    }
    for (const jobs::Start& start : result.starts) begin(start);
    check();
    return result;
  }
  void pass(double seconds) {
    now = cluster::after(now, seconds);
    for (const std::string& id : ids()) {
      const double ran = std::chrono::duration<double>(now - started.at(id)).count();
      const Wish& wish = wishes.at(id);
      if (ran >= (wish.limit > 0 ? std::min(wish.runs, static_cast<double>(wish.limit)) : wish.runs)) end(id);
    }
  }
  void end(const std::string& id) { leave(id, false); }

  bool runs(const std::string& id) const { return running.count(id) != 0; }
  uint32_t held(const std::string& queue) const {
    uint32_t sum = 0;
    for (const auto& [id, devices] : running) {
      if (wishes.at(id).queue == queue) sum += static_cast<uint32_t>(devices.size());
    }
    return sum;
  }
  v1::Waiting why(const std::string& id) {
    jobs::RoundView view;
    view.now = now;
    view.queues = queues;
    view.holders = holders();
    view.result = plan();
    EXPECT_TRUE(view.result.starts.empty());
    view.inventory = inventory;
    jobs::Explainer explainer(std::move(view), [](const std::string& job) { return job; });
    const jobs::Waiter& waiter = *line.find(records.at(id).order());
    return explainer.explain(waiter, line.request(waiter.request)).value();
  }

  cluster::Inventory inventory;
  std::vector<jobs::QueueConfig> queues = {{.name = "default"}};
  jobs::Line line;
  std::set<uint64_t> held_back;
  Clock::Wall now = Clock::Wall(std::chrono::seconds(1'000'000));
  std::chrono::seconds patience{300};
  std::map<std::string, server::jobs::JobRecord> records;
  std::map<std::string, Wish> wishes;
  std::map<std::string, std::vector<uint32_t>> running;  // Id -> its devices.
  std::map<std::string, Clock::Wall> started;
  std::map<std::string, int> preempted;
  std::set<std::string> stopping;
  std::set<std::string> over;
  uint64_t last_order = 0;

 private:
  std::vector<std::string> ids() const {
    std::vector<std::string> all;
    for (const auto& [id, devices] : running) all.push_back(id);
    return all;
  }
  std::vector<jobs::Holder> holders() const {
    std::vector<jobs::Holder> all;
    for (const auto& [id, devices] : running) {
      const Wish& wish = wishes.at(id);
      jobs::Holder holder;
      holder.id = id;
      holder.order = records.at(id).order();
      holder.queue = wish.queue;
      holder.priority = wish.priority;
      holder.ending = stopping.count(id) != 0;
      holder.preemptible = wish.preemptible && !holder.ending;
      holder.placed = started.at(id);
      if (wish.limit > 0) holder.ends = started.at(id) + std::chrono::seconds(wish.limit);
      if (holder.ending) holder.ends = now;
      holder.array = wish.array;
      holder.devices = devices;
      holder.held = static_cast<uint32_t>(devices.size());
      all.push_back(std::move(holder));
    }
    return all;
  }
  void begin(const jobs::Start& start) {
    EXPECT_EQ(start.devices.size(), wishes.at(start.id).devices);
    for (size_t rank = 0; rank < start.devices.size(); ++rank) {
      cluster::Inventory::Device& device = inventory.devices[start.devices[rank]];
      EXPECT_EQ(device.holder, "") << start.id << " gets what " << device.holder << " has";
      EXPECT_TRUE(inventory.nodes[device.node].open && inventory.nodes[device.node].ready);
      device.holder = "projects/p/jobs/" + start.id;
      const uint32_t tensor = wishes.at(start.id).tensor;
      EXPECT_EQ(device.domain, inventory.devices[start.devices[rank / tensor * tensor]].domain);
    }
    running[start.id] = start.devices;
    started[start.id] = now;
    line.remove(start.order);
  }
  void leave(const std::string& id, bool again) {
    for (const uint32_t device : running.at(id)) inventory.devices[device].holder.clear();
    running.erase(id);
    stopping.erase(id);
    if (!again) {
      over.insert(id);
      return;
    }
    *records.at(id).mutable_queue_time() = cluster::to_timestamp(now);
    line.put(records.at(id));
  }
  void check() const {
    for (const jobs::QueueConfig& queue : queues) {
      EXPECT_LE(held(queue.name), queue.quota_devices > 0 ? queue.quota_devices : UINT32_MAX) << queue.name;
    }
    std::map<std::string, uint32_t> tasks;
    for (const auto& [id, devices] : running) {
      const Wish& wish = wishes.at(id);
      EXPECT_LE(++tasks[wish.array], wish.array_most > 0 ? wish.array_most : UINT32_MAX) << wish.array;
    }
  }
};

}  // namespace telar::tests
