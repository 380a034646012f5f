// Text in aligned columns.
#pragma once

#include <string>
#include <vector>

namespace telar::client {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // Columns two spaces apart, as wide as their widest cell in characters (not bytes); nothing trails a line.
  std::string text(bool with_header, const std::string& indent = "") const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

inline std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }  // So that no cell is empty.
size_t width_of(const std::string& text);  // UTF-8 characters, each counted as one column.
// The first `width` characters of `text`.
std::string cut(const std::string& text, size_t width);

}  // namespace telar::client
