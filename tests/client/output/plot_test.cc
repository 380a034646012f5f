#include "client/output/plot.h"

#include <gtest/gtest.h>

#include <cmath>

#include "client/output/table.h"

namespace telar::client {
namespace {

std::vector<Point> falling(uint64_t count) {
  std::vector<Point> points;
  for (uint64_t step = 1; step <= count; ++step) points.push_back({step, 10.0 - static_cast<double>(step)});
  return points;
}

TEST(PlotTest, NothingAndOnePoint) {
  EXPECT_EQ(plot({}, 10, 2, true).lines, (std::vector<std::string>{"", ""}));
  const Plot one = plot({{5, 2.5}}, 4, 1, false);
  EXPECT_EQ(one.lines, std::vector<std::string>{"-   "});
  EXPECT_EQ(one.low, 2.5);
  EXPECT_EQ(one.high, 2.5);
}

TEST(PlotTest, ALineFallsFromTheTopToTheBottom) {
  const Plot ascii = plot(falling(6), 6, 2, false);
  EXPECT_EQ(ascii.lines, (std::vector<std::string>{"'-.   ", "   '-."}));
  EXPECT_EQ(ascii.high, 9);
  EXPECT_EQ(ascii.low, 4);
  // Dots 1, 2+5, 3+6, 7: one column a step, one place a step.
  EXPECT_EQ(plot(falling(4), 2, 1, true).lines, std::vector<std::string>{"⠑⢄"});
  // From the top to the bottom in one column: what lies between is joined.
  EXPECT_EQ(plot({{1, 9}, {2, 1}, {3, 1}, {4, 9}}, 2, 1, true).lines, std::vector<std::string>{"⢱⡸"});
}

TEST(PlotTest, EachLineHasTheWidth) {
  for (const bool unicode : {false, true}) {
    for (const size_t width : {1, 7, 40, 200}) {
      for (const uint64_t count : {2, 3, 39, 5000}) {
        const Plot drawn = plot(falling(count), width, 3, unicode);
        for (const std::string& line : drawn.lines) EXPECT_EQ(width_of(line), width) << count;
      }
    }
  }
}

TEST(PlotTest, TheFirstTenthDoesNotFlattenTheRest) {
  std::vector<Point> points = {{1, 1000}, {2, 500}};
  for (uint64_t step = 3; step <= 40; ++step) points.push_back({step, step % 2 == 0 ? 1.0 : 2.0});
  const Plot drawn = plot(points, 40, 1, false);
  EXPECT_EQ(drawn.high, 2);
  EXPECT_EQ(drawn.lines[0].substr(0, 6), "'''.'.");
}

TEST(PlotTest, ColumnsAreMeansAndGapsAreBridged) {
  // Two points in the first column, none in the middle.
  const Plot drawn = plot({{0, 0}, {1, 2}, {12, 4}}, 3, 1, false);
  EXPECT_EQ(drawn.low, 1);
  EXPECT_EQ(drawn.high, 4);
  EXPECT_EQ(drawn.lines[0], ".-'");
}

TEST(BarTest, FillsToItsShare) {
  EXPECT_EQ(bar(0, 6, false), "[    ]");
  EXPECT_EQ(bar(0.5, 6, false), "[##  ]");
  EXPECT_EQ(bar(1, 6, false), "[####]");
  EXPECT_EQ(bar(7, 6, false), "[####]");
  EXPECT_EQ(bar(std::nan(""), 6, false), "[    ]");
  EXPECT_EQ(bar(0.5, 6, false, 0.75), "[## |]");
  EXPECT_EQ(bar(0.5, 6, false, 2), "[## |]");
  EXPECT_EQ(bar(0.375, 6, true), "[█▌  ]");
  for (const double share : {0.0, 0.01, 0.3, 0.99, 1.0}) EXPECT_EQ(width_of(bar(share, 33, true)), 33u) << share;
}

}  // namespace
}  // namespace telar::client
