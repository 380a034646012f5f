// Command lines of the benchmarks: --name value, and --name alone for switches.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace telar::bench {

class Flags {
 public:
  // INVALID_ARGUMENT names an argument that is neither in `valued` nor in `switches`, or lacks its value.
  static absl::StatusOr<Flags> parse(int argc, char** argv, const std::vector<std::string>& valued,
                                     const std::vector<std::string>& switches);

  bool has(const std::string& name) const { return values_.count(name) > 0; }
  std::string text(const std::string& name, const std::string& absent) const;
  // INVALID_ARGUMENT unless it is a whole number from `least` up.
  absl::StatusOr<int64_t> number(const std::string& name, int64_t absent, int64_t least = 0) const;

 private:
  std::map<std::string, std::string> values_;
};

// `text` into `path`, whole.
absl::Status write_file(const std::string& path, const std::string& text);

}  // namespace telar::bench
