#include "worker/plan/resolve_scheduling.h"

#include <gmock/gmock.h>

namespace telar::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> scheduling_fields(const std::vector<SpecProblem>& problems) {
  std::vector<std::string> out;
  for (const SpecProblem& problem : problems) out.push_back(problem.field);
  return out;
}

std::vector<std::string> scheduling_mistakes(v1::JobSpec& spec) {
  Problems problems;
  resolve_scheduling(spec, problems);
  return scheduling_fields(problems.take());
}

TEST(ResolveScheduling, FillsDefaultsInOnce) {
  v1::JobSpec spec;
  spec.mutable_scheduling()->add_after()->set_job("k3j9x2ab");
  EXPECT_THAT(scheduling_mistakes(spec), IsEmpty());
  EXPECT_EQ(spec.scheduling().queue(), "default");
  EXPECT_TRUE(spec.scheduling().preemptible());
  EXPECT_EQ(spec.scheduling().after(0).condition(), v1::Dependency::SUCCEEDED);
  EXPECT_FALSE(spec.has_array());
  spec.mutable_scheduling()->set_preemptible(false);
  spec.mutable_scheduling()->set_queue("q");
  spec.mutable_scheduling()->mutable_after(0)->set_condition(v1::Dependency::ENDED);
  spec.mutable_array()->set_size(5);
  const v1::JobSpec before = spec;
  EXPECT_THAT(scheduling_mistakes(spec), IsEmpty());
  EXPECT_EQ(spec.array().max_running(), 5u);
  EXPECT_EQ(spec.scheduling().SerializeAsString(), before.scheduling().SerializeAsString());
}

TEST(ResolveScheduling, NamesEveryMistake) {
  v1::JobSpec spec;
  v1::SchedulingSpec& scheduling = *spec.mutable_scheduling();
  scheduling.set_priority(-1001);
  scheduling.set_time_limit_seconds(1ull << 40);
  scheduling.add_after();
  (*scheduling.mutable_node_labels())[""] = "x";
  scheduling.add_exclude_nodes("good");
  scheduling.add_exclude_nodes("");
  spec.mutable_array()->set_size(2);
  spec.mutable_array()->set_max_running(3);
  EXPECT_THAT(scheduling_mistakes(spec), ElementsAre("spec.scheduling.priority", "spec.scheduling.time_limit_seconds",
                                                     "spec.scheduling.after[0].job", "spec.scheduling.node_labels[]",
                                                     "spec.scheduling.exclude_nodes[1]", "spec.array.max_running"));
  EXPECT_THAT(scheduling_fields(check_scheduling(scheduling)),
              ElementsAre("spec.scheduling.priority", "spec.scheduling.time_limit_seconds"));
}

TEST(ResolveScheduling, AnArrayHasAValueForEachTask) {
  v1::JobSpec spec;
  spec.set_name("sweep");
  EXPECT_THAT(scheduling_fields(check_array(spec)), ElementsAre("spec.array.size"));
  spec.mutable_array()->set_size(11);
  EXPECT_THAT(check_array(spec), IsEmpty());
  spec.set_name(std::string(60, 'x'));
  EXPECT_THAT(check_array(spec), IsEmpty());  // "-10" is three more.
  spec.set_name(std::string(61, 'x'));
  EXPECT_THAT(scheduling_fields(check_array(spec)), ElementsAre("spec.name"));
  spec.set_name("sweep");
  for (const char* field : {"seed", "seed", "name", "array.size", ""}) {
    v1::ArrayParameter& parameter = *spec.mutable_array()->add_parameters();
    parameter.set_field(field);
    for (int i = 0; i < 11; ++i) parameter.add_values("1");
  }
  spec.mutable_array()->mutable_parameters(0)->add_values("2");
  EXPECT_THAT(
      scheduling_fields(check_array(spec)),
      ElementsAre("spec.array.parameters[0].values", "spec.array.parameters[1].field", "spec.array.parameters[2].field",
                  "spec.array.parameters[3].field", "spec.array.parameters[4].field"));
}

}  // namespace
}  // namespace telar::plan
