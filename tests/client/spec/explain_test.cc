#include "client/spec/explain.h"

#include <gtest/gtest.h>

namespace telar::client {
namespace {

TEST(ExplainTest, AFieldItsValuesAndAGroup) {
  EXPECT_EQ(*explain("model.kv_heads"),
            "model.kv_heads (uint32)\n  Default: heads. Must divide heads. GPT2: equal to heads.\n");
  EXPECT_NE(explain("schedule.kind")->find("wsd"), std::string::npos);
  EXPECT_EQ(explain("schedule.kind")->find("unspecified"), std::string::npos);
  EXPECT_NE(explain("model")->find("rope_theta"), std::string::npos);
  EXPECT_NE(explain("data.train")->find("list of string"), std::string::npos);
  EXPECT_NE(explain("")->find("resources"), std::string::npos);
}

TEST(ExplainTest, Unknown) {
  EXPECT_EQ(std::string(explain("model.kv_hed").status().message()),
            "model.kv_hed: unknown field 'kv_hed'; did you mean 'kv_heads'?");
  EXPECT_EQ(std::string(explain("seed.x").status().message()), "seed.x: 'seed' has no fields");
}

}  // namespace
}  // namespace telar::client
