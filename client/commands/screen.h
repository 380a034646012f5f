// A terminal (stderr) as one page that is drawn again and again: on its other screen, without cursor, lines not
// wrapped, all of which is taken back at the end. The keys that stop or quit a program do nothing meanwhile: they would
// leave the terminal so.
#pragma once

#include <string>
#include <vector>

#include "client/commands/context.h"
#include "client/output/job_view.h"

namespace telar::client {

class Screen {
 public:
  explicit Screen(Terminal& terminal) : terminal_(terminal) {}
  ~Screen() { leave(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  ViewStyle style() const;  // As the terminal is now.
  // Written only where it differs from the page before.
  void draw(std::vector<std::string> lines);
  bool shown() const { return shown_; }
  // Gives the terminal back; the last page stays on it, as text.
  void leave();

  // Gives the terminal back, whoever draws on it; for a thread that is about to end the program.
  static void restore();

 private:
  Terminal& terminal_;
  bool shown_ = false;
  std::vector<std::string> lines_;
};

}  // namespace telar::client
