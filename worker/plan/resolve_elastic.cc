#include "worker/plan/resolve_elastic.h"

#include <algorithm>

namespace telar::plan {
namespace {

constexpr uint64_t kMostRanksOfAJob = 65536;

// Of a shard group when so many replicas run; 0 where nothing is split.
uint32_t shard_of(const v1::ParallelSpec& parallel, uint32_t replicas) {
  if (parallel.zero_stage() == 0) return 0;
  return parallel.shard() >= parallel.data() ? replicas : std::min(parallel.shard(), replicas);
}

bool fits(const v1::JobSpec& spec, uint32_t replicas) {
  const uint64_t a_micro_batch = uint64_t{replicas} * spec.batch().micro();
  if (a_micro_batch == 0 || spec.batch().global() % a_micro_batch != 0) return false;
  const uint32_t shard = shard_of(spec.parallel(), replicas);
  return shard == 0 || replicas % shard == 0;
}

// The fitting number that is closest to `from`, within [low, high]; 0: none.
uint32_t nearest(const v1::JobSpec& spec, uint32_t from, uint32_t low, uint32_t high) {
  for (uint32_t away = 0; away <= high - low; ++away) {
    if (from >= low + away && fits(spec, from - away)) return from - away;
    if (from + away <= high && fits(spec, from + away)) return from + away;
  }
  return 0;
}

}  // namespace

void resolve_elastic(v1::JobSpec& spec, Problems& problems) {
  if (!spec.parallel().has_elastic()) return;
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  v1::ElasticSpec& elastic = *parallel.mutable_elastic();
  const uint32_t data = parallel.data();
  if (elastic.min_data() == 0) elastic.set_min_data(1);
  if (elastic.max_data() == 0) elastic.set_max_data(data);
  if (data == 0 || spec.batch().micro() == 0 || !fits(spec, data)) return;  // Told already.
  if (parallel.schedule() == "custom") {
    problems.add("parallel.elastic",
                 "does not go with parallel.schedule custom, which is for one number of "
                 "micro-batches");
  }
  if (elastic.min_data() > data) {
    problems.add("parallel.elastic.min_data", "{} is more than parallel.data = {}", elastic.min_data(), data);
    return;
  }
  if (elastic.max_data() < data) {
    problems.add("parallel.elastic.max_data", "{} is less than parallel.data = {}", elastic.max_data(), data);
    return;
  }
  const uint64_t inner = uint64_t{parallel.tensor()} * parallel.pipeline();
  if (elastic.max_data() * inner > kMostRanksOfAJob) {
    problems.add("parallel.elastic.max_data", "{} replicas of {} ranks are more than the {} ranks that a job may have",
                 elastic.max_data(), inner, kMostRanksOfAJob);
    return;
  }
  const auto check = [&](const char* field, uint32_t replicas, uint32_t low, uint32_t high) {
    if (fits(spec, replicas)) return;
    problems.add(fmt::format("parallel.elastic.{}", field),
                 "{} replicas do not share batch.global = {} in micro-batches of batch.micro = {}{}; use {}", replicas,
                 spec.batch().global(), spec.batch().micro(),
                 parallel.zero_stage() > 0 ? " and whole shard groups" : "", nearest(spec, replicas, low, high));
  };
  check("min_data", elastic.min_data(), 1, data);
  check("max_data", elastic.max_data(), data, elastic.max_data());
}

std::vector<uint32_t> replica_counts(const v1::JobSpec& spec) {
  const v1::ParallelSpec& parallel = spec.parallel();
  if (!parallel.has_elastic()) return {parallel.data()};
  std::vector<uint32_t> counts;
  for (uint32_t replicas = parallel.elastic().max_data(); replicas >= std::max(1u, parallel.elastic().min_data());
       --replicas) {
    if (fits(spec, replicas)) counts.push_back(replicas);
  }
  return counts;
}

v1::JobSpec with_replicas(const v1::JobSpec& spec, uint32_t replicas) {
  v1::JobSpec shape = spec;
  v1::ParallelSpec& parallel = *shape.mutable_parallel();
  if (replicas == parallel.data()) return shape;
  if (const uint32_t shard = shard_of(parallel, replicas); shard != 0) parallel.set_shard(shard);
  parallel.set_data(replicas);
  shape.mutable_resources()->set_devices(replicas * parallel.tensor() * parallel.pipeline());
  return shape;
}

}  // namespace telar::plan
