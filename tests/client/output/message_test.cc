#include "client/output/message.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/spec/reader.h"
#include "telar/v1/jobs.pb.h"

namespace telar::client {
namespace {

v1::JobSpec with_prompt(const std::string& text) {
  v1::JobSpec spec;
  spec.mutable_sample()->set_prompt(text);
  return spec;
}

TEST(YamlTest, TextIsQuotedWhereYamlCouldTakeItForSomethingElse) {
  for (const char* plain : {"word", "/data/a-b_c.txt", "gpt2-124m"}) {
    EXPECT_EQ(to_yaml(with_prompt(plain)), absl::StrCat("sample:\n  prompt: ", plain, "\n"));
  }
  for (const char* odd :
       {"no", "Yes", "null", "y", "~", "12", "1e5", "-",    "- a",  "a: b", "a #b", " a", "*x",       "&x", "!x",
        "'",  "{",   "[a]",  "%", "@", "`",  "|",   "a\nb", "a\tb", "\x01", "\"",   "\\", "\xc3\xa9", "..."}) {
    const std::string yaml = to_yaml(with_prompt(odd));
    EXPECT_NE(yaml.find("prompt: \""), std::string::npos) << odd;
    v1::JobSpec again;
    EXPECT_TRUE(read_spec("y", yaml, Format::kYaml, again).problems.empty()) << yaml;
    EXPECT_EQ(again.sample().prompt(), odd);
  }
}

TEST(YamlTest, NumbersReadBackExactly) {
  for (const double value :
       {0.1, 1e-8, 3e-4, 1.0 / 3, 1e15, 123456789.125, 5e-324, 1.7976931348623157e308, -2.5, 1e-5}) {
    v1::JobSpec spec;
    spec.mutable_optimizer()->set_learning_rate(value);
    v1::JobSpec again;
    ASSERT_TRUE(read_spec("y", to_yaml(spec), Format::kYaml, again).problems.empty()) << to_yaml(spec);
    EXPECT_EQ(again.optimizer().learning_rate(), value);
  }
  v1::JobSpec spec;
  spec.mutable_optimizer()->set_learning_rate(3e-4);
  spec.mutable_optimizer()->set_epsilon(1e-8);
  EXPECT_EQ(to_yaml(spec), "optimizer:\n  learning_rate: 0.0003\n  epsilon: 1.0e-08\n");
}

TEST(YamlTest, DefaultsAreDroppedButExplicitOnesStay) {
  v1::JobSpec spec;
  EXPECT_EQ(to_yaml(spec), "{}\n");
  spec.set_seed(0);
  spec.mutable_optimizer()->set_clip_norm(0);
  spec.mutable_eval();
  EXPECT_EQ(to_yaml(spec), "optimizer:\n  clip_norm: 0\neval: {}\n");
}

TEST(YamlTest, ListsTimesEnumsAndUnknownEnums) {
  v1::Job job;
  job.set_state(v1::Job::RUNNING);
  job.mutable_create_time()->set_seconds(1'800'000'000);
  job.add_placement()->set_node("a");
  job.mutable_placement(0)->mutable_device()->set_kind(v1::ResourceSpec::GPU);
  job.add_placement();
  job.add_placement()->set_rank(2);
  job.mutable_spec()->mutable_data()->add_train(std::string("x"));
  EXPECT_EQ(to_yaml(job),
            "spec:\n  data:\n    train:\n    - x\n"
            "state: running\n"
            "create_time: \"2027-01-15T08:00:00Z\"\n"
            "placement:\n- node: a\n  device:\n    kind: gpu\n- {}\n- rank: 2\n");
  v1::Job newer;
  newer.set_state(static_cast<v1::Job::State>(99));
  EXPECT_EQ(to_yaml(newer), "state: 99\n");
  newer.mutable_progress()->set_loss(std::nan(""));
  EXPECT_NE(to_yaml(newer).find("loss: .nan"), std::string::npos);
}

TEST(JsonTest, KeepsTheNamesOfTheProto) {
  v1::Job job;
  job.mutable_progress()->set_total_steps(7);
  EXPECT_EQ(to_json(job), "{\n \"progress\": {\n  \"total_steps\": \"7\"\n }\n}\n");
  EXPECT_EQ(to_json(v1::Job()), "{}\n");
}

}  // namespace
}  // namespace telar::client
