#include "common/crc32c.h"

#include <random>

#include <gtest/gtest.h>

namespace telar {
namespace {

// Bit by bit, from the polynomial alone.
uint32_t plain(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

// The vectors of RFC 3720 B.4, and the usual check value.
TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(crc32c(std::string_view("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string ascending, descending;
  for (int value = 0; value < 32; ++value) {
    ascending.push_back(static_cast<char>(value));
    descending.push_back(static_cast<char>(31 - value));
  }
  EXPECT_EQ(crc32c(ascending), 0x46dd794eu);
  EXPECT_EQ(crc32c(descending), 0x113fdb5cu);
  EXPECT_EQ(crc32c(std::string_view("")), 0u);
  EXPECT_EQ(crc_text(0x0a), "0000000a");
}

TEST(Crc32c, GoesOnWhereItStopped) {
  std::mt19937_64 random(1);
  std::string bytes(1000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  const uint32_t whole = plain(bytes);
  EXPECT_EQ(crc32c(bytes), whole);
  for (size_t cut = 0; cut <= bytes.size(); cut += 13) {
    EXPECT_EQ(crc32c(std::string_view(bytes).substr(cut), crc32c(std::string_view(bytes).substr(0, cut))), whole);
  }
}

}  // namespace
}  // namespace telar
