#include "common/utf8.h"

#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/wrappers.pb.h>
#include <gtest/gtest.h>

#include <random>

namespace telar {
namespace {

TEST(Utf8, KeepsWhatIsWellFormed) {
  for (const char* text : {"", "plain", "Straße", "→→→", "𝛼", "\x7f"}) EXPECT_EQ(well_formed(text), text);
}

TEST(Utf8, PutsAQuestionMarkForEachBadByte) {
  EXPECT_EQ(well_formed("caf\xe9!"), "caf?!");         // Latin-1.
  EXPECT_EQ(well_formed("\xc0\xaf"), "??");            // Overlong.
  EXPECT_EQ(well_formed("\xed\xa0\x80"), "???");       // A surrogate.
  EXPECT_EQ(well_formed("\xf4\x90\x80\x80"), "????");  // Beyond U+10FFFF.
  EXPECT_EQ(well_formed("\xe2\x86"), "??");            // Cut.
  EXPECT_EQ(well_formed(std::string_view("a\0b", 3)), std::string("a\0b", 3));
}

TEST(Utf8, CutsBetweenCharacters) {
  EXPECT_EQ(well_formed("→→→", 8), "→→");
  EXPECT_EQ(well_formed("→→→", 9), "→→→");
  EXPECT_EQ(well_formed("a→", 3), "a");
  EXPECT_EQ(well_formed("abc", 0), "");
}

// By protobuf's own judgement: what it would not read is not let through, what it would is not changed.
TEST(Utf8, AgreesWithProtobuf) {
  const google::protobuf::LogSilencer silence;  // It tells of each text that it does not read.
  std::mt19937 random(3);
  int good = 0, bad = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text;
    const auto size = random() % 5;
    for (unsigned i = 0; i < size; ++i) {  // Mostly bytes that may follow each other.
      constexpr unsigned char kBytes[] = {'a',  0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc1, 0xc2,
                                          0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5};
      text += static_cast<char>(kBytes[random() % sizeof(kBytes)]);
    }
    const std::string wire = std::string("\x0a") + static_cast<char>(text.size()) + text;
    google::protobuf::StringValue value;
    const bool readable = value.ParseFromString(wire);
    ++(readable ? good : bad);
    const std::string mended = well_formed(text);
    EXPECT_EQ(mended == text, readable) << trial;
    EXPECT_EQ(well_formed(mended), mended);
  }
  EXPECT_GT(good, 1000);
  EXPECT_GT(bad, 1000);
}

}  // namespace
}  // namespace telar
