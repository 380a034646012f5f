#include "common/addresses.h"

#include <gtest/gtest.h>

namespace telar {
namespace {

TEST(Addresses, AreCheckedOneByOne) {
  for (const char* right : {"a:1", "127.0.0.1:7070", "a:1,b:65535", "[::1]:80"}) EXPECT_EQ(check_addresses(right), "");
  EXPECT_EQ(check_addresses("a"), "'a' is not host:port with a port from 1 to 65535");
  EXPECT_EQ(check_addresses("a:1,b"),
            "'b' is not host:port with a port from 1 to 65535, or several with commas between");
  EXPECT_EQ(check_addresses("a:1,a:1"), "'a:1' is there twice");
  for (const char* wrong : {"", ",", "a:1,", ":1", "a:", "a:0", "a:65536", "a:1x", "a:-1", "a:123456"}) {
    EXPECT_NE(check_addresses(wrong), "") << wrong;
  }
}

TEST(Addresses, AreTheSameInWhateverOrder) {
  EXPECT_EQ(join_addresses({"b:2", "a:1", "b:2"}), "a:1,b:2");
  EXPECT_EQ(split_addresses("a:1,b:2"), (std::vector<std::string>{"a:1", "b:2"}));
}

TEST(Addresses, NamesOfSeveralAreLookedUp) {
  EXPECT_EQ(grpc_target("some.host.invalid:1"), "some.host.invalid:1");  // One: gRPC does, again and again.
  EXPECT_EQ(grpc_target("127.0.0.1:1,localhost:2"), "ipv4:127.0.0.1:1,127.0.0.1:2");
  EXPECT_EQ(grpc_target("127.0.0.1:1,some.host.invalid:2"), "ipv4:127.0.0.1:1");
}

}  // namespace
}  // namespace telar
