#include "client/spec/suggest.h"

#include <gtest/gtest.h>

#include "telar/v1/spec.pb.h"

namespace telar::client {
namespace {

TEST(EditDistanceTest, Known) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("nmae", "name"), 1);
  EXPECT_EQ(edit_distance("abc", "abc"), 0);
}

TEST(NearestTest, OnlyWhatIsNear) {
  EXPECT_EQ(nearest("layer", {"heads", "layers"}), "layers");
  EXPECT_EQ(nearest("KVHeads", {"heads", "kv_heads"}), "kv_heads");
  EXPECT_EQ(nearest("zzz", {"heads", "layers"}), "");
  EXPECT_EQ(nearest("x", {"y"}), "");
  EXPECT_EQ(nearest("", {"y"}), "");
  EXPECT_EQ(nearest(std::string(100'000, 'a'), {"aaaa"}), "");
}

TEST(SuggestFieldTest, SameNameElsewhereBeatsAboutThatNameHere) {
  const auto* root = v1::JobSpec::descriptor();
  EXPECT_EQ(suggest_field("kv_head", v1::ModelSpec::descriptor(), root), "; did you mean 'kv_heads'?");
  EXPECT_EQ(suggest_field("warmup_steps", root, root), "; did you mean 'schedule.warmup_steps'?");
  EXPECT_EQ(suggest_field("qqqqqq", root, root), "");
}

}  // namespace
}  // namespace telar::client
