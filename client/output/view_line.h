// One line of a page that fills a terminal: never wider than it, colours not counted.
#pragma once

#include <string>

#include "client/output/table.h"

namespace telar::client {

class ViewLine {
 public:
  static constexpr const char* kBold = "\x1b[1m";
  static constexpr const char* kDim = "\x1b[2m";
  static constexpr const char* kRed = "\x1b[31m";
  static constexpr const char* kGreen = "\x1b[32m";
  static constexpr const char* kYellow = "\x1b[33m";
  static constexpr const char* kNone = "";

  ViewLine(size_t width, bool colour) : width_(width), colour_(colour) {}

  // What has no room any more is cut off.
  ViewLine& add(const std::string& text, const char* colour = kNone) {
    const std::string fitting = cut(text, width_ - used_);
    used_ += width_of(fitting);
    text_ += colour_ && *colour != '\0' && !fitting.empty() ? colour + fitting + "\x1b[0m" : fitting;
    return *this;
  }
  // At the right edge, two columns or more behind what is there; not at all where that has no room.
  ViewLine& add_right(const std::string& text, const char* colour = kNone) {
    if (used_ + 2 + width_of(text) > width_) return *this;
    return add(std::string(width_ - used_ - width_of(text), ' ')).add(text, colour);
  }
  size_t left() const { return width_ - used_; }
  const std::string& text() const { return text_; }

 private:
  const size_t width_;
  const bool colour_;
  size_t used_ = 0;
  std::string text_;
};

}  // namespace telar::client
