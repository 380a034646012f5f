#include "client/output/table.h"

#include <algorithm>

namespace telar::client {
namespace {

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

std::string line(const std::vector<std::string>& row, const std::vector<size_t>& widths, const std::string& indent) {
  std::string text = indent;
  size_t owed = 0;  // Padding is written only when a cell follows it.
  for (size_t i = 0; i < row.size(); ++i) {
    if (!row[i].empty()) {
      text += std::string(owed, ' ') + row[i];
      owed = 0;
    }
    owed += widths[i] - width_of(row[i]) + 2;
  }
  return text + "\n";
}

}  // namespace

size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

std::string cut(const std::string& text, size_t width) {
  size_t seen = 0, at = 0;
  while (at < text.size() && (!starts_character(text[at]) || seen++ < width)) ++at;
  return text.substr(0, at);
}

std::string Table::text(bool with_header, const std::string& indent) const {
  std::vector<size_t> widths(header_.size());
  for (size_t i = 0; i < header_.size(); ++i) {
    widths[i] = with_header ? width_of(header_[i]) : 0;
    for (const auto& row : rows_) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string all = with_header ? line(header_, widths, indent) : "";
  for (const auto& row : rows_) all += line(row, widths, indent);
  return all;
}

}  // namespace telar::client
