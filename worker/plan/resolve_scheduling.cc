#include "worker/plan/resolve_scheduling.h"

#include <set>

#include "worker/plan/resolve.h"
#include "worker/plan/resolve_enums.h"

namespace telar::plan {
namespace {

constexpr uint32_t kMostTasks = 10'000;
constexpr int kMostDependencies = 1'000;
constexpr int kMostNames = 1'000;
constexpr size_t kMostName = 63;
constexpr size_t kMostLabel = 253;
constexpr uint64_t kLongestLimit = 10ull * 365 * 86'400;

void simple_fields(const v1::SchedulingSpec& scheduling, Problems& problems) {
  problems.within("scheduling.priority", scheduling.priority(), -1000, 1000);
  if (scheduling.time_limit_seconds() > kLongestLimit) {
    problems.add("scheduling.time_limit_seconds", "{} is more than ten years; 0 is no limit",
                 scheduling.time_limit_seconds());
  }
}

void dependencies(v1::SchedulingSpec& scheduling, Problems& problems) {
  if (scheduling.after_size() > kMostDependencies) {
    problems.add("scheduling.after", "{} jobs; at most {}", scheduling.after_size(), kMostDependencies);
  }
  for (int i = 0; i < scheduling.after_size(); ++i) {
    v1::Dependency& dependency = *scheduling.mutable_after(i);
    if (dependency.condition() == v1::Dependency::CONDITION_UNSPECIFIED) {
      dependency.set_condition(v1::Dependency::SUCCEEDED);
    }
    if (dependency.job().empty()) {
      problems.add(fmt::format("scheduling.after[{}].job", i), "is not given; want a job's id or full name");
    }
  }
}

void nodes(const v1::SchedulingSpec& scheduling, Problems& problems) {
  if (scheduling.node_labels_size() > kMostNames) {
    problems.add("scheduling.node_labels", "{} labels; at most {}", scheduling.node_labels_size(), kMostNames);
  }
  const std::set<std::string> keys = [&] {
    std::set<std::string> found;
    for (const auto& [key, value] : scheduling.node_labels()) found.insert(key);
    return found;
  }();
  for (const std::string& key : keys) {
    if (key.empty() || key.size() > kMostLabel || scheduling.node_labels().at(key).size() > kMostLabel) {
      problems.add(fmt::format("scheduling.node_labels[{}]", key.substr(0, 80)),
                   "name and value have at most {} characters, and the name at least one", kMostLabel);
    }
  }
  if (scheduling.exclude_nodes_size() > kMostNames) {
    problems.add("scheduling.exclude_nodes", "{} nodes; at most {}", scheduling.exclude_nodes_size(), kMostNames);
  }
  for (int i = 0; i < scheduling.exclude_nodes_size(); ++i) {
    if (scheduling.exclude_nodes(i).empty() || scheduling.exclude_nodes(i).size() > kMostLabel) {
      problems.add(fmt::format("scheduling.exclude_nodes[{}]", i), "must be a node's name, as telar nodes prints it");
    }
  }
}

void parameters(const v1::ArraySpec& array, Problems& problems) {
  std::set<std::string> seen;
  for (int i = 0; i < array.parameters_size(); ++i) {
    const v1::ArrayParameter& parameter = array.parameters(i);
    const std::string field = fmt::format("array.parameters[{}]", i);
    if (parameter.field().empty())
      problems.add(field + ".field", "is not given; want a path such as optimizer.learning_rate");
    if (parameter.field() == "name" || parameter.field().rfind("array", 0) == 0) {
      problems.add(field + ".field", "'{}' cannot differ between tasks", parameter.field());
    }
    if (!seen.insert(parameter.field()).second) {
      problems.add(field + ".field", "'{}' is there twice", parameter.field());
    }
    if (static_cast<uint32_t>(parameter.values_size()) != array.size()) {
      problems.add(field + ".values", "{} values for {} tasks; want one for each", parameter.values_size(),
                   array.size());
    }
  }
}

}  // namespace

std::vector<SpecProblem> check_scheduling(const v1::SchedulingSpec& scheduling) {
  Problems problems;
  check_enums(scheduling, "scheduling", problems);
  simple_fields(scheduling, problems);
  return problems.take();
}

std::vector<SpecProblem> check_array(const v1::JobSpec& spec) {
  Problems problems;
  const v1::ArraySpec& array = spec.array();
  if (array.size() == 0 || array.size() > kMostTasks) {
    problems.add("array.size", "{} is not within [1, {}]", array.size(), kMostTasks);
  } else {
    parameters(array, problems);
    const std::string last = fmt::format("{}-{}", spec.name(), array.size() - 1);
    if (last.size() > kMostName) {
      problems.add("name", "'{}', the name of the last task, has {} characters; at most {}", last.substr(0, 80),
                   last.size(), kMostName);
    }
  }
  return problems.take();
}

void resolve_scheduling(v1::JobSpec& spec, Problems& problems) {
  v1::SchedulingSpec& scheduling = *spec.mutable_scheduling();
  if (scheduling.queue().empty()) scheduling.set_queue("default");
  if (!scheduling.has_preemptible()) scheduling.set_preemptible(true);
  simple_fields(scheduling, problems);
  dependencies(scheduling, problems);
  nodes(scheduling, problems);
  if (!spec.has_array()) return;
  v1::ArraySpec& array = *spec.mutable_array();
  if (array.max_running() == 0) array.set_max_running(array.size());
  if (array.max_running() > array.size()) {
    problems.add("array.max_running", "{} is more than array.size = {}", array.max_running(), array.size());
  }
}

}  // namespace telar::plan
