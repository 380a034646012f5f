#include <gtest/gtest.h>

#include "client/spec/reader.h"
#include "telar/v1/spec.pb.h"

namespace telar::client {
namespace {

std::string problem(const std::string& assignment, v1::JobSpec& spec) {
  const std::vector<Problem> found = set_field(assignment, spec);
  return found.empty() ? "" : to_string(found[0]);
}
std::string problem(const std::string& assignment) {
  v1::JobSpec spec;
  return problem(assignment, spec);
}

TEST(SetFieldTest, ReplacesOneField) {
  v1::JobSpec spec;
  spec.mutable_data()->add_train("old");
  EXPECT_EQ(problem("model.layers=1k", spec), "");
  EXPECT_EQ(problem("data.train=[a, 'b,c']", spec), "");
  EXPECT_EQ(problem("data.eval=one.txt", spec), "");
  EXPECT_EQ(problem("sample.prompt=It was: [the best] = of #times", spec), "");
  EXPECT_EQ(problem("model.rope_scaling.factor=8", spec), "");
  EXPECT_EQ(problem("schedule.kind=WSD", spec), "");
  EXPECT_EQ(problem("name=", spec), "");
  EXPECT_EQ(spec.model().layers(), 1000u);
  ASSERT_EQ(spec.data().train_size(), 2);
  EXPECT_EQ(spec.data().train(1), "b,c");
  EXPECT_EQ(spec.data().eval(0), "one.txt");
  EXPECT_EQ(spec.sample().prompt(), "It was: [the best] = of #times");
  EXPECT_EQ(spec.model().rope_scaling().factor(), 8);
  EXPECT_EQ(spec.schedule().kind(), v1::ScheduleSpec::WSD);
}

TEST(SetFieldTest, SaysWhatIsWrong) {
  EXPECT_EQ(problem("model.layers"), "--set: got 'model.layers', want path=value");
  EXPECT_EQ(problem("=1"), "--set: got '=1', want path=value");
  EXPECT_EQ(problem("model.layer=1"), "--set: model.layer: unknown field 'layer'; did you mean 'layers'?");
  EXPECT_EQ(problem("seed.x=1"), "--set: seed.x: 'seed' has no fields");
  EXPECT_EQ(problem("scheduling.after=[{job: projects/default/jobs/a}, {job: b}]"), "");
  EXPECT_EQ(problem("model=gpt2"), "--set: model: names a group of fields; set one of them, as model.preset=...");
  EXPECT_TRUE(problem("seed=x").starts_with("--set: seed: got 'x', want an integer"));
  EXPECT_TRUE(problem("data.train=[a").starts_with("--set: data.train: got '[a', cannot be read: "));
  EXPECT_EQ(problem("name=\xff"), "--set: name: is not UTF-8 text");
  EXPECT_NE(problem(".=1"), "");
}

}  // namespace
}  // namespace telar::client
