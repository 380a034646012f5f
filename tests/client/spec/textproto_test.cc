#include "client/spec/textproto.h"

#include <gtest/gtest.h>

#include "client/spec/reader.h"
#include "telar/v1/spec.pb.h"

namespace telar::client {
namespace {

std::string problems_in(const std::string& text) {
  v1::JobSpec spec;
  std::string all;
  for (const Problem& one : read_spec("j.txtpb", text, Format::kTextproto, spec).problems) all += to_string(one) + "\n";
  return all;
}

TEST(TextprotoTest, ReadsAndKeepsPlaces) {
  v1::JobSpec spec;
  const SpecReading reading = read_spec("j.txtpb",
                                        "name: \"x\"\nmodel {\n  layers: 2\n  architecture: LLAMA\n}\n"
                                        "data { train: [\"a\", \"b\"] }\n",
                                        Format::kTextproto, spec);
  ASSERT_TRUE(reading.problems.empty());
  EXPECT_EQ(spec.model().layers(), 2u);
  EXPECT_EQ(spec.model().architecture(), v1::LLAMA);
  EXPECT_EQ(spec.data().train(1), "b");
  EXPECT_EQ(reading.places.at("model.layers").line, 3);
  EXPECT_TRUE(reading.places.contains("data.train[0]"));
}

TEST(TextprotoTest, AllUnknownFieldsAtOnce) {
  EXPECT_EQ(problems_in("nmae: \"x\"\nmodel {\n  layer: 2\n  heads: 4\n}\n"),
            "j.txtpb:1:5: unknown field 'nmae'; did you mean 'name'?\n"
            "j.txtpb:3:8: unknown field 'layer'; did you mean 'layers'?\n");
}

TEST(TextprotoTest, OtherErrors) {
  EXPECT_EQ(problems_in("model { architecture: GPT3 }"), "j.txtpb:1:28: got 'GPT3', want one of gpt2, llama\n");
  EXPECT_EQ(problems_in("model { architecture: 2 }"), "") << "a number that has a name";
  EXPECT_EQ(problems_in("model { architecture: 4 }"),
            "j.txtpb:1:9: model.architecture: got 4, want one of gpt2, llama\n");
  EXPECT_EQ(problems_in("scheduling { after { job: \"a\" condition: 7 } }"),
            "j.txtpb:1:31: scheduling.after[0].condition: got 7, want one of succeeded, ended, started\n");
  EXPECT_NE(problems_in("model { layers: -1 }"), "");
  EXPECT_NE(problems_in("model {"), "");
  EXPECT_NE(problems_in("seed: 1 seed: 2"), "");
  EXPECT_EQ(problems_in("# nothing\n"), "j.txtpb: is empty, want a job spec\n");
}

}  // namespace
}  // namespace telar::client
