#include "client/spec/scalar.h"

#include <gtest/gtest.h>

#include "google/protobuf/wrappers.pb.h"
#include "telar/v1/rank.pb.h"

namespace telar::client {
namespace {

TEST(ParseIntegerTest, Exact) {
  const std::pair<const char*, int64_t> cases[] = {{"0", 0},
                                                   {"007", 7},
                                                   {"+5", 5},
                                                   {"-12", -12},
                                                   {"1e3", 1000},
                                                   {"1.5e1", 15},
                                                   {"100e-2", 1},
                                                   {"0e-9", 0},
                                                   {"1k", 1000},
                                                   {"1.5M", 1'500'000},
                                                   {"2G", 2'000'000'000},
                                                   {"64Ki", 65536},
                                                   {"1Mi", 1 << 20},
                                                   {"3Gi", 3LL << 30},
                                                   {"0.5Ki", 512},
                                                   {"1.0", 1},
                                                   {".5k", 500},
                                                   {"5.", 5},
                                                   {"9223372036854775807", INT64_MAX}};
  for (const auto& [text, value] : cases) {
    ASSERT_TRUE(parse_integer(text)) << text;
    EXPECT_EQ(static_cast<int64_t>(*parse_integer(text)), value) << text;
  }
}

TEST(ParseIntegerTest, NotAnInteger) {
  for (const char* text : {"",     "-",      "+",   ".",       "e3",
                           "1e",   "1e+",    "1.5", "1.2345k", "1K",
                           "1ki",  "1kB",    "1 ",  " 1",      "--1",
                           "1..2", "1e9999", "0x1", "1e40",    "99999999999999999999999999999999999999999",
                           "1e1.5"}) {
    EXPECT_FALSE(parse_integer(text)) << text;
  }
}

TEST(ParseIntegerTest, ZeroesWithAHugeExponentTakeNoTime) {
  EXPECT_TRUE(parse_integer("0e999"));
  EXPECT_FALSE(parse_integer("1e-999"));
  EXPECT_FALSE(parse_integer("1e999"));
}

// Every kind of field, also those that the spec has none of yet.
TEST(SetScalarTest, BoundsOfEachType) {
  const auto fits = [](google::protobuf::Message& message, const char* text) {
    return set_scalar(message, message.GetDescriptor()->field(0), text).empty();
  };
  google::protobuf::Int32Value int32;
  EXPECT_TRUE(fits(int32, "-2147483648"));
  EXPECT_EQ(int32.value(), INT32_MIN);
  EXPECT_FALSE(fits(int32, "2147483648"));
  EXPECT_EQ(int32.value(), INT32_MIN) << "unchanged by a refusal";
  google::protobuf::Int64Value int64;
  EXPECT_TRUE(fits(int64, "-9223372036854775808"));
  EXPECT_FALSE(fits(int64, "9223372036854775808"));
  google::protobuf::UInt32Value uint32;
  EXPECT_TRUE(fits(uint32, "4294967295"));
  EXPECT_FALSE(fits(uint32, "4Gi"));
  google::protobuf::UInt64Value uint64;
  EXPECT_TRUE(fits(uint64, "18446744073709551615"));
  EXPECT_FALSE(fits(uint64, "18446744073709551616"));
  google::protobuf::FloatValue single;
  EXPECT_TRUE(fits(single, "0.5"));
  EXPECT_EQ(single.value(), 0.5f);
  google::protobuf::BoolValue yes;
  EXPECT_TRUE(fits(yes, "On"));
  EXPECT_TRUE(yes.value());
}

TEST(SetScalarTest, EnumsInAnyCaseButNotUnspecified) {
  v1::DataSpec data;
  const auto* format = data.GetDescriptor()->FindFieldByName("format");
  EXPECT_EQ(set_scalar(data, format, "Llmc-Bin"), "");
  EXPECT_EQ(data.format(), v1::DataSpec::LLMC_BIN);
  EXPECT_EQ(set_scalar(data, format, "format_unspecified"), "want one of text, llmc_bin, megatron, prepared");
  EXPECT_EQ(set_scalar(data, format, "2"), "want one of text, llmc_bin, megatron, prepared");
  EXPECT_EQ(set_scalar(data, format, "txt"), "want one of text, llmc_bin, megatron, prepared; did you mean 'text'?");
}

}  // namespace
}  // namespace telar::client
