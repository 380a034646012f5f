#include "client/output/plot.h"

#include <algorithm>
#include <cmath>

namespace telar::client {
namespace {

constexpr size_t kBrailleRows = 4;
// Of a braille character's dots, by column and row from the top (Unicode, block U+2800).
constexpr unsigned kDots[2][kBrailleRows] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
constexpr const char* kAscii = "'-.";  // The places in one character, from the top.
constexpr size_t kAsciiRows = 3;
constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};

std::string braille(unsigned dots) {
  if (dots == 0) return " ";
  const unsigned code = 0x2800 + dots;
  return {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

// The mean of each column; what lies between two that have points is on the line between them.
std::vector<double> columns_of(const std::vector<Point>& points, size_t count) {
  std::vector<double> sums(count, 0);
  std::vector<size_t> counts(count, 0);
  const uint64_t first = points.front().step, span = std::max<uint64_t>(1, points.back().step - first);
  for (const Point& point : points) {
    const double share = static_cast<double>(point.step - first) / static_cast<double>(span);
    const auto at = std::min(count - 1, static_cast<size_t>(share * static_cast<double>(count)));
    sums[at] += point.value;
    ++counts[at];
  }
  size_t last = 0;  // The first and the last column have points.
  for (size_t i = 0; i < count; ++i) {
    if (counts[i] == 0) continue;
    sums[i] /= static_cast<double>(counts[i]);
    for (size_t between = last + 1; between < i; ++between) {
      const double share = static_cast<double>(between - last) / static_cast<double>(i - last);
      sums[between] = sums[last] + share * (sums[i] - sums[last]);
    }
    last = i;
  }
  sums.resize(last + 1);  // A single point is one column.
  return sums;
}

// Places from the top.
size_t place_of(double value, const Plot& scale, size_t places) {
  if (scale.high <= scale.low) return places / 2;
  const double share = std::clamp((scale.high - value) / (scale.high - scale.low), 0.0, 1.0);
  return std::min(places - 1, static_cast<size_t>(share * static_cast<double>(places)));
}

}  // namespace

Plot plot(const std::vector<Point>& points, size_t width, size_t rows, bool unicode) {
  Plot drawn;
  drawn.lines.assign(rows, std::string());
  if (points.empty() || width == 0 || rows == 0) return drawn;
  const size_t across = unicode ? 2 : 1, down = unicode ? kBrailleRows : kAsciiRows;
  const std::vector<double> columns = columns_of(points, width * across);
  const auto settled = columns.begin() + static_cast<std::ptrdiff_t>(columns.size() / 10);
  const auto [low, high] = std::minmax_element(settled, columns.end());
  drawn.low = *low;
  drawn.high = *high;
  std::vector<std::vector<unsigned>> cells(rows, std::vector<unsigned>(width, 0));  // Dots; of ASCII, place + 1.
  size_t before = 0;
  for (size_t i = 0; i < columns.size(); ++i) {
    const size_t place = place_of(columns[i], drawn, rows * down);
    if (!unicode) cells[place / down][i] = static_cast<unsigned>(place % down) + 1;
    // Dots are joined to those of the column before.
    const size_t from = i == 0 || before == place ? place : before < place ? before + 1 : before - 1;
    for (size_t dot = std::min(from, place); unicode && dot <= std::max(from, place); ++dot) {
      cells[dot / down][i / across] |= kDots[i % across][dot % down];
    }
    before = place;
  }
  for (size_t row = 0; row < rows; ++row) {
    for (const unsigned cell : cells[row]) {
      drawn.lines[row] += unicode ? braille(cell) : std::string(1, cell == 0 ? ' ' : kAscii[cell - 1]);
    }
  }
  return drawn;
}

std::string bar(double share, size_t width, bool unicode, std::optional<double> mark) {
  const size_t inside = width > 2 ? width - 2 : 1;
  const double filled = std::clamp(std::isfinite(share) ? share : 0, 0.0, 1.0) * static_cast<double>(inside);
  const auto whole = static_cast<size_t>(filled);
  std::vector<std::string> cells(inside, " ");
  for (size_t i = 0; i < whole; ++i) cells[i] = unicode ? "█" : "#";
  const auto eighths = static_cast<size_t>((filled - static_cast<double>(whole)) * 8);
  if (unicode && whole < inside && eighths > 0) cells[whole] = kEighths[eighths];
  if (mark) {
    const double place = std::clamp(*mark, 0.0, 1.0) * static_cast<double>(inside);
    cells[std::min(inside - 1, static_cast<size_t>(place))] = "|";
  }
  std::string text = "[";
  for (const std::string& cell : cells) text += cell;
  return text + "]";
}

}  // namespace telar::client
