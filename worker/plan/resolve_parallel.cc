#include "worker/plan/resolve_parallel.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "worker/parallel/schedule.h"
#include "worker/parallel/schedule_passes.h"
#include "worker/plan/nearest.h"

namespace telar::plan {
namespace {

constexpr uint32_t kMostRanks = 65536;
constexpr uint32_t kMostPrefetch = 8;
constexpr uint32_t kAnyNumber = std::numeric_limits<uint32_t>::max();

struct Schedule {
  const char* name;
  uint32_t least, most;  // Stages that a rank holds; the least is the default.
};
constexpr Schedule kSchedules[] = {
    {"gpipe", 1, 1}, {"1f1b", 1, 1}, {"interleaved", 2, kAnyNumber},
    {"zb-h1", 1, 1}, {"zb-v", 2, 2}, {"custom", 1, kAnyNumber},
};

std::string nearest_schedule(const std::string& name) {
  std::vector<std::string> names;
  for (const Schedule& one : kSchedules) names.emplace_back(one.name);
  return nearest_name(name, names);
}

uint32_t largest_divisor(uint32_t of, uint32_t at_most) {
  uint32_t divisor = std::min(of, at_most);
  while (divisor > 1 && of % divisor != 0) --divisor;
  return divisor;
}

class ParallelResolver {
 public:
  ParallelResolver(v1::JobSpec& spec, Problems& problems)
      : spec_(spec), parallel_(*spec.mutable_parallel()), problems_(problems) {}

  void run() {
    if (parallel_.auto_()) {
      problems_.add("parallel.auto",
                    "is decided when a job is submitted by itself; `telar plan` prints layouts to choose "
                    "from, of which one can be written here");
    }
    if (parallel_.tensor() == 0) parallel_.set_tensor(1);
    if (parallel_.pipeline() == 0) parallel_.set_pipeline(1);
    if (parallel_.bucket_mib() == 0) parallel_.set_bucket_mib(25);
    degrees();
    tensor();
    zero();
    if (schedule()) stages();
    reduction();
  }

 private:
  bool within_most_ranks(const std::string& field, uint32_t degree) {
    if (degree <= kMostRanks) return true;
    problems_.add(field, "{} is more than the {} ranks that a job may have", degree, kMostRanks);
    return false;
  }

  void degrees() {
    const uint32_t devices = spec_.resources().devices();
    bool few = within_most_ranks("parallel.data", parallel_.data());
    few = within_most_ranks("parallel.tensor", parallel_.tensor()) && few;
    few = within_most_ranks("parallel.pipeline", parallel_.pipeline()) && few;
    few = within_most_ranks("resources.devices", devices) && few;
    if (!few) return;  // Products are safe from here on.
    const uint64_t inner = uint64_t{parallel_.tensor()} * parallel_.pipeline();
    if (parallel_.data() == 0 && devices % inner != 0) {
      const uint64_t below = devices / inner * inner;
      problems_.add(
          "resources.devices",
          "{} is not divisible by parallel.tensor * pipeline = {} * {} = {}, so no parallel.data fits; use {}", devices,
          parallel_.tensor(), parallel_.pipeline(), inner,
          below == 0 ? fmt::format("{}", inner) : fmt::format("{} or {}", below, below + inner));
      return;
    }
    if (parallel_.data() == 0) parallel_.set_data(static_cast<uint32_t>(devices / inner));
    const uint64_t ranks = parallel_.data() * inner;
    if (ranks != devices) {
      problems_.add("resources.devices", "{} is not parallel.data * tensor * pipeline = {} * {} * {} = {}", devices,
                    parallel_.data(), parallel_.tensor(), parallel_.pipeline(), ranks);
    }
  }

  // A key-value head is on one rank, or on as many as there are ranks for it.
  bool splits_kv_heads(uint32_t tensor) const {
    const uint32_t heads = spec_.model().kv_heads();
    return heads == 0 || heads % tensor == 0 || tensor % heads == 0;
  }
  bool splits_model(uint32_t tensor) const {
    const v1::ModelSpec& model = spec_.model();
    return model.heads() % tensor == 0 && splits_kv_heads(tensor) && model.ffn() >= tensor && model.vocab() >= tensor;
  }

  void tensor() {
    const v1::ModelSpec& model = spec_.model();
    const uint32_t ranks = parallel_.tensor();
    if (ranks > 1 && !parallel_.has_overlap_tensor()) parallel_.set_overlap_tensor(true);
    if (ranks > kMostRanks || model.heads() == 0 || splits_model(ranks)) return;
    uint32_t fits = ranks;
    while (fits > 1 && !splits_model(fits)) --fits;
    if (model.heads() % ranks != 0) {
      problems_.add("parallel.tensor", "{} does not divide model.heads = {}: {} % {} = {}; use {}", ranks,
                    model.heads(), model.heads(), ranks, model.heads() % ranks, fits);
    }
    if (!splits_kv_heads(ranks)) {
      problems_.add("parallel.tensor", "{} neither divides model.kv_heads = {} nor is a multiple of it; use {}", ranks,
                    model.kv_heads(), fits);
    }
    if (model.ffn() < ranks) {
      problems_.add("parallel.tensor", "{} ranks cannot share model.ffn = {}; use {}", ranks, model.ffn(), fits);
    }
    if (model.vocab() < ranks) {
      problems_.add("parallel.tensor", "{} ranks cannot share model.vocab = {}; use {}", ranks, model.vocab(), fits);
    }
  }

  void zero() {
    const uint32_t stage = parallel_.zero_stage(), data = parallel_.data();
    if (stage > 3) {
      problems_.add("parallel.zero_stage",
                    "{} is not known; use 0, 1 (optimizer state), 2 (and gradients) or 3 (and "
                    "weights)",
                    stage);
    }
    if (stage == 0 && parallel_.shard() != 0) {
      problems_.add("parallel.shard", "{} needs parallel.zero_stage 1, 2 or 3: at 0 nothing is split",
                    parallel_.shard());
    }
    if (stage > 0 && parallel_.shard() == 0) parallel_.set_shard(data);
    if (stage > 0 && data > 0 && data <= kMostRanks && data % parallel_.shard() != 0) {
      problems_.add("parallel.shard", "{} does not divide parallel.data = {}; use {}", parallel_.shard(), data,
                    largest_divisor(data, parallel_.shard()));
    }
    if (stage == 3 && !parallel_.has_prefetch()) parallel_.set_prefetch(1);
    if (parallel_.has_prefetch() && stage < 3) {
      problems_.add("parallel.prefetch", "{} needs parallel.zero_stage 3: at {} no weights are gathered",
                    parallel_.prefetch(), stage);
    } else if (parallel_.prefetch() > kMostPrefetch) {
      problems_.add("parallel.prefetch", "{} buckets ahead are more than {}", parallel_.prefetch(), kMostPrefetch);
    }
  }

  // False: the number of stages is not known.
  bool schedule() {
    if (parallel_.schedule().empty()) parallel_.set_schedule(parallel_.virtual_stages() > 1 ? "interleaved" : "1f1b");
    const std::string& name = parallel_.schedule();
    const auto* found = std::find_if(std::begin(kSchedules), std::end(kSchedules),
                                     [&](const Schedule& one) { return name == one.name; });
    if (found == std::end(kSchedules)) {
      problems_.add("parallel.schedule", "'{}' is not known; did you mean '{}'?", name.substr(0, 80),
                    nearest_schedule(name.substr(0, 80)));
      return false;
    }
    if (parallel_.virtual_stages() == 0) parallel_.set_virtual_stages(found->least);
    const uint32_t stages = parallel_.virtual_stages();
    if (stages < found->least || stages > found->most) {
      problems_.add("parallel.virtual_stages", "{} does not go with parallel.schedule {}, where each rank holds {}{}{}",
                    stages, name, found->least, found->most > found->least ? " or more" : "",
                    found->most == 1 ? "; use 1, or schedule interleaved" : "");
    } else if (stages > 1 && parallel_.pipeline() == 1) {
      problems_.add("parallel.virtual_stages",
                    "{} stages a rank (schedule {}) need parallel.pipeline above 1: one rank has nothing to wait for",
                    stages, name);
    }
    const bool custom = name == "custom";
    if (custom && parallel_.schedule_text().empty()) {
      problems_.add("parallel.schedule_text", "not given; parallel.schedule custom needs a line for each of {} ranks",
                    parallel_.pipeline());
    } else if (!custom && !parallel_.schedule_text().empty()) {
      problems_.add("parallel.schedule_text", "goes with parallel.schedule custom only, not with {}", name);
    }
    return true;
  }

  void stages() {
    const uint32_t layers = spec_.model().layers(), each = parallel_.virtual_stages();
    const uint64_t stages = uint64_t{parallel_.pipeline()} * each;
    if (layers > 0 && stages > layers) {
      const std::string fix = each <= layers ? fmt::format("parallel.pipeline {}", layers / each)
                                             : fmt::format("parallel.virtual_stages {}", layers);
      problems_.add("parallel.pipeline",
                    "pipeline * virtual_stages = {} * {} = {} stages, but model.layers = {} and each stage needs one; "
                    "use at most {}",
                    parallel_.pipeline(), each, stages, layers, fix);
    }
    stage_layers(stages);
  }

  void stage_layers(uint64_t stages) {
    const auto& given = parallel_.stage_layers();
    if (given.empty()) return;
    const std::string field = "parallel.stage_layers";
    if (static_cast<uint64_t>(given.size()) != stages) {
      problems_.add(field, "{} entries, but pipeline * virtual_stages = {} * {} = {} stages", given.size(),
                    parallel_.pipeline(), parallel_.virtual_stages(), stages);
    }
    for (int i = 0; i < given.size(); ++i) {
      if (given[i] == 0) problems_.add(fmt::format("{}[{}]", field, i), "0; each stage needs at least one layer");
    }
    uint64_t sum = 0;
    for (const uint32_t layers : given) sum += layers;
    if (sum != spec_.model().layers()) {
      problems_.add(field, "{} = {} is not model.layers = {}", fmt::join(given, " + "), sum, spec_.model().layers());
    }
  }

  void reduction() {
    if (parallel_.reduce() == v1::PRECISION_UNSPECIFIED) parallel_.set_reduce(v1::FP32);
    if (parallel_.reduce() == v1::FP32 || parallel_.reduce() == v1::BF16) return;
    problems_.add("parallel.reduce", "{} is not possible; use fp32 or bf16",
                  parallel_.reduce() == v1::FP16   ? "fp16"
                  : parallel_.reduce() == v1::FP8  ? "fp8"
                  : parallel_.reduce() == v1::AUTO ? "auto"
                                                   : std::to_string(static_cast<int>(parallel_.reduce())));
  }

  v1::JobSpec& spec_;
  v1::ParallelSpec& parallel_;
  Problems& problems_;
};

}  // namespace

void resolve_custom_schedule(const v1::JobSpec& spec, Problems& problems) {
  const v1::ParallelSpec& parallel = spec.parallel();
  const std::string field = "parallel.schedule_text";
  if (parallel.schedule() != "custom" || parallel.schedule_text().empty()) return;
  const auto schedule = parallel::parse_schedule(parallel.schedule_text());
  if (!schedule.ok()) return problems.add(field, "{}", std::string(schedule.status().message()));
  const auto same = [&](const char* what, int64_t got, int64_t want, const std::string& why) {
    if (got != want) problems.add(field, "has {} {}, but {} = {}", got, what, why, want);
  };
  const int64_t stages = int64_t{parallel.pipeline()} * parallel.virtual_stages();
  same("lines", schedule->ranks, parallel.pipeline(), "parallel.pipeline");
  same("stages", schedule->stages, stages,
       fmt::format("pipeline * virtual_stages = {} * {}", parallel.pipeline(), parallel.virtual_stages()));
  const uint64_t a_micro_batch = uint64_t{parallel.data()} * spec.batch().micro();
  if (a_micro_batch > 0 && spec.batch().global() % a_micro_batch == 0) {
    same("micro-batches", schedule->micro_batches, static_cast<int64_t>(spec.batch().global() / a_micro_batch),
         fmt::format("batch.global / parallel.data / batch.micro = {} / {} / {}", spec.batch().global(),
                     parallel.data(), spec.batch().micro()));
  }
  absl::Status works = parallel::validate(*schedule);
  if (works.ok()) works = parallel::lower(*schedule).status();
  if (!works.ok()) problems.add(field, "{}", std::string(works.message()));
}

void resolve_parallel(v1::JobSpec& spec, Problems& problems) { ParallelResolver(spec, problems).run(); }

}  // namespace telar::plan
