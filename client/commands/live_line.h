// One line on stderr that is drawn again and again in its place, where stderr is a terminal.
#pragma once

#include <optional>
#include <string>

#include "client/commands/context.h"

namespace telar::client {

class LiveLine {
 public:
  explicit LiveLine(Context& context) : context_(context) {}
  ~LiveLine() { clear(); }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  bool live() const { return context_.terminal.live; }
  // Whether it is time for another line, so long after the one before; if it is, counts from now.
  bool due(Milliseconds interval);
  // Cut to the terminal's width: a line that wraps cannot be redrawn.
  std::string fit(const std::string& line) const;
  // `line` is fitting, but for colours. On a terminal only.
  void draw(std::string line);
  // A line of its own, above the live one.
  void note(const std::string& text);
  void clear();  // Takes the live line away.

 private:
  Context& context_;
  std::optional<Clock::Steady> last_;
  std::string shown_;  // Empty: none.
};

}  // namespace telar::client
