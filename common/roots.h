// The folders that a job may read and write below: --allowed-root of the daemons. No root: everything is allowed.
//
// The coordinator looks at a path's text when a job is submitted. What the text cannot tell, where links lead, a rank
// finds out on the file that it has opened, so that nobody can swap a name between the check and the use.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace telar {

class Roots {
 public:
  Roots() = default;
  explicit Roots(const std::vector<std::string>& roots);  // Absolute.

  bool any() const { return !roots_.empty(); }
  // What is wrong with a path, or a glob, as it is written; empty: nothing. It has to begin with a root, and ".." must
  // neither lead out of it nor stand behind a wildcard, where nobody can tell where it leads.
  std::string problem(const std::string& path) const;
  // Whether the open file or folder lies below a root, wherever links led to. PERMISSION_DENIED names the file and the
  // place. `path` is what was opened.
  absl::Status check_open(int file, const std::string& path) const;
  const std::vector<std::string>& list() const { return roots_; }

 private:
  std::vector<std::string> roots_;  // Normal, without a slash at the end.
  std::vector<std::string> real_;   // Those, with links followed.
};

// TELAR_ALLOWED_ROOTS, with colons between them: what a worker tells its ranks. Read once.
const Roots& process_roots();
void roots_to_environment(const std::vector<std::string>& roots);  // Before any thread.

}  // namespace telar
