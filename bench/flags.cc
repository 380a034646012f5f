#include "bench/flags.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace telar::bench {

absl::StatusOr<Flags> Flags::parse(int argc, char** argv, const std::vector<std::string>& valued,
                                   const std::vector<std::string>& switches) {
  const auto known = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string name = argument.substr(0, 2) == "--" ? argument.substr(2) : "";
    if (known(switches, name)) {
      flags.values_[name] = "";
    } else if (!known(valued, name)) {
      return absl::InvalidArgumentError(absl::StrCat("unknown argument '", argument, "'"));
    } else if (++i == argc) {
      return absl::InvalidArgumentError(absl::StrCat(argument, ": value missing"));
    } else {
      flags.values_[name] = argv[i];
    }
  }
  return flags;
}

std::string Flags::text(const std::string& name, const std::string& absent) const {
  const auto found = values_.find(name);
  return found == values_.end() ? absent : found->second;
}

absl::StatusOr<int64_t> Flags::number(const std::string& name, int64_t absent, int64_t least) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return absent;
  int64_t value = 0;
  if (absl::SimpleAtoi(found->second, &value) && value >= least) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": got '", found->second, "', wanted a whole number from ", least, " up"));
}

absl::Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace telar::bench
