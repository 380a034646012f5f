// Curves and bars made of characters: braille dots and blocks, or ASCII for terminals that have no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace telar::client {

struct Point {
  uint64_t step = 0;
  double value = 0;
};

struct Plot {
  std::vector<std::string> lines;  // From the top, each of the width that was asked for.
  double low = 0, high = 0;        // What the lowest and the highest place stand for.
};
// `points` by ascending steps, drawn evenly by step; where several fall into one column, their mean. The first tenth of
// the width does not set the scale: losses fall so far at first that the rest would be flat. What is outside the scale
// is at its edge. Empty lines without points.
Plot plot(const std::vector<Point>& points, size_t width, size_t rows, bool unicode);

// "[#####      ]" of `width` columns, filled to `share` of 1; `mark`: another share that stands out, if there is one.
std::string bar(double share, size_t width, bool unicode, std::optional<double> mark = std::nullopt);

}  // namespace telar::client
