#include "server/jobs/queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/cluster/times.h"
#include "server/jobs/blame.h"
#include "server/jobs/draft.h"
#include "server/jobs/elastic.h"

namespace telar::server::jobs {
namespace {

// Text of any content, so that two of them in a row are read in one way only.
std::string sized(const std::string& text) { return absl::StrCat(text.size(), ":", text); }

Waiter waiter_of(const JobRecord& record, size_t request) {
  const v1::Job& job = record.job();
  const v1::SchedulingSpec& wishes = job.spec().scheduling();
  Waiter waiter;
  waiter.order = record.order();
  waiter.id = job_id(job.name());
  waiter.queue = queue_of(wishes);
  waiter.priority = wishes.priority();
  waiter.request = request;
  waiter.queued = cluster::to_wall(record.queue_time());
  if (job.has_retry_time()) waiter.not_before = cluster::to_wall(job.retry_time());
  if (wishes.time_limit_seconds() > 0) {
    const double left = static_cast<double>(wishes.time_limit_seconds()) - job.run_seconds();
    waiter.seconds_left = std::max(left, 1e-3);  // Whoever has none left is ended elsewhere.
  }
  waiter.array = job.array();
  if (!job.array().empty()) waiter.array_most = job.spec().array().max_running();
  waiter.depends = wishes.after_size() > 0;
  return waiter;
}

}  // namespace

std::string Request::nodes_key() const {
  std::string key = spares ? "s" : "";
  for (const auto& [name, value] : labels) absl::StrAppend(&key, "l", sized(name), sized(value));
  for (const std::string& node : excluded) absl::StrAppend(&key, "x", sized(node));
  return key;
}

std::string Request::key() const {
  std::string key = absl::StrCat(static_cast<int>(kind));
  for (const cluster::GangShape& shape : shapes) {
    absl::StrAppend(&key, "/", shape.tensor, ",", shape.data, ",", shape.pipeline, ",", shape.shard,
                    shape.tensor_across_domains ? "t" : "");
  }
  for (const std::string& node : avoided) absl::StrAppend(&key, "a", sized(node));
  return absl::StrCat(key, "|", nodes_key());
}

Request request_of(const JobRecord& record) {
  const v1::JobSpec& spec = record.job().spec();
  Request request;
  request.kind = spec.resources().kind();
  request.shapes = shapes_of(spec);
  request.labels = {spec.scheduling().node_labels().begin(), spec.scheduling().node_labels().end()};
  request.excluded = {spec.scheduling().exclude_nodes().begin(), spec.scheduling().exclude_nodes().end()};
  request.avoided = avoided_nodes(record);
  request.spares = record.lost_node();
  return request;
}

size_t Line::share(const JobRecord& record) {
  Request request = request_of(record);
  std::string key = request.key();
  const auto known = numbers_.find(key);
  if (known != numbers_.end()) {
    ++requests_[known->second].users;
    return known->second;
  }
  size_t number = requests_.size();
  if (unused_.empty()) {
    requests_.emplace_back();
  } else {
    number = unused_.back();
    unused_.pop_back();
  }
  numbers_[key] = number;
  requests_[number] = {std::move(request), std::move(key), 1};
  return number;
}

void Line::put(const JobRecord& record) {
  remove(record.order());
  ++version_;
  Waiter waiter = waiter_of(record, share(record));
  const Place place{-int64_t{waiter.priority}, waiter.order};
  places_[waiter.order] = {waiter.queue, place};
  if (waiter.depends) depending_.insert(waiter.order);
  queues_[waiter.queue][place] = std::move(waiter);
}

void Line::remove(uint64_t order) {
  const auto found = places_.find(order);
  if (found == places_.end()) return;
  ++version_;
  const auto queue = queues_.find(found->second.first);
  const auto waiter = queue->second.find(found->second.second);
  const size_t number = waiter->second.request;
  if (--requests_[number].users == 0) {
    numbers_.erase(requests_[number].key);
    unused_.push_back(number);
  }
  queue->second.erase(waiter);
  if (queue->second.empty()) queues_.erase(queue);
  depending_.erase(order);
  places_.erase(found);
}

const Waiter* Line::find(uint64_t order) const {
  const auto found = places_.find(order);
  if (found == places_.end()) return nullptr;
  return &queues_.at(found->second.first).at(found->second.second);
}

}  // namespace telar::server::jobs
