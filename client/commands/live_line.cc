#include "client/commands/live_line.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "client/output/table.h"

namespace telar::client {
namespace {

constexpr const char* kStartOver = "\r\x1b[K";

}  // namespace

bool LiveLine::due(Milliseconds interval) {
  const auto now = context_.clock.now();
  if (last_ && now - *last_ < interval) return false;
  last_ = now;
  return true;
}

std::string LiveLine::fit(const std::string& line) const {
  const int width = context_.terminal.width == nullptr ? 80 : context_.terminal.width();
  return cut(line, static_cast<size_t>(std::max(20, width - 1)));
}

void LiveLine::draw(std::string line) {
  shown_ = std::move(line);
  context_.err() << kStartOver << shown_ << std::flush;
}

void LiveLine::note(const std::string& text) {
  const std::string again = shown_;
  clear();
  context_.err() << text << "\n" << again << std::flush;
  shown_ = again;
}

void LiveLine::clear() {
  if (!shown_.empty()) context_.err() << kStartOver << std::flush;
  shown_.clear();
}

}  // namespace telar::client
