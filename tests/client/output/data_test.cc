#include "client/output/data.h"

#include <gtest/gtest.h>

namespace telar::client {
namespace {

TEST(JsonAsYaml, BlocksInOrder) {
  const auto json = nlohmann::ordered_json::parse(
      R"({"b": 1, "a": {"x": "yes: no", "y": [1, [2, 3]]}, "none": [], "list": [{"p": true, "q": {"r": null}}]})");
  EXPECT_EQ(json_as_yaml(json),
            "b: 1\na:\n  x: \"yes: no\"\n  y:\n    - 1\n    - - 2\n      - 3\nnone: []\n"
            "list:\n  - p: true\n    q:\n      r: null\n");
}

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\tb\nc\x1b[2J\x7f\r"), "a\tb\nc\\x1b[2J\\x7f\\x0d");
  EXPECT_EQ(printable("\xc3\xa9\xe4\xb8\x89\xf0\x9f\x98\x80"), "\xc3\xa9\xe4\xb8\x89\xf0\x9f\x98\x80");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xe4\xb8"), "\\xe4\\xb8");
  EXPECT_EQ(printable("\xff\xc2\x9b"), "\\xff\\xc2\\x9b");  // U+009B begins control sequences.
  EXPECT_EQ(printable_line("a\n\tb"), "a\\n\\tb");
}

TEST(DataProgressLine, WithAndWithoutAnEnd) {
  EXPECT_EQ(data_progress_line({.read_bytes = 512,
                                .total_bytes = 2048,
                                .documents = 1234,
                                .tokens = 56,
                                .skipped = 2,
                                .bytes_per_second = 512}),
            "25.0%  512 B of 2.0 KiB  1.23k documents  56 tokens  2 skipped  0.0 MB/s  ETA 3.0s");
  EXPECT_EQ(data_progress_line({.read_bytes = 512, .documents = 1, .tokens = 5}), "512 B  1 documents  5 tokens");
}

}  // namespace
}  // namespace telar::client
