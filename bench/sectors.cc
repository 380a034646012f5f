#include "bench/sectors.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace telar::bench {
namespace {

constexpr const char* kLoads = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio";
constexpr const char* kStores = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio";

// Fields of a line of CSV with every field in quotes; a quote inside is doubled.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  bool inside = false;
  for (char c : line) {
    if (c == '"') {
      inside = !inside;
      if (inside) fields.emplace_back();
    } else if (inside) {
      fields.back() += c;
    }
  }
  return fields;
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// By kernel: the most sectors a request, of loads and of stores.
using Sectors = std::map<std::string, std::pair<double, double>>;

Sectors read_log(const std::string& path) {
  Sectors sectors;
  std::ifstream log(path);
  size_t kernel = 0, metric = 0, value = 0;
  for (std::string line; std::getline(log, line);) {
    const std::vector<std::string> fields = fields_of(line);
    if (fields.empty() || fields.size() <= std::max({kernel, metric, value})) continue;
    if (value == 0) {  // Not yet at the heading.
      for (size_t i = 0; i < fields.size(); ++i) {
        if (fields[i] == "Kernel Name") kernel = i;
        if (fields[i] == "Metric Name") metric = i;
        if (fields[i] == "Metric Value") value = i;
      }
      continue;
    }
    double number = 0;
    if (!absl::SimpleAtod(fields[value], &number)) continue;
    auto& [loads, stores] = sectors[fields[kernel]];
    if (fields[metric] == kLoads) loads = std::max(loads, number);
    if (fields[metric] == kStores) stores = std::max(stores, number);
  }
  return sectors;
}

}  // namespace

absl::Status print_sectors(int argc, char** argv) {
  if (std::system("command -v ncu > /dev/null 2>&1") != 0) return absl::NotFoundError("--ncu: no ncu on the PATH");
  char path[] = "/tmp/bench_sectors_XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return absl::UnavailableError("--ncu: no temporary file");
  close(file);
  std::string command =
      absl::StrCat("ncu --csv --kernel-name regex:_kernel --log-file ", path, " --metrics ", kLoads, ",", kStores);
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument != "--ncu") absl::StrAppend(&command, " ", quoted(argument));
  }
  absl::StrAppend(&command, " --once > /dev/null");
  const bool failed = std::system(command.c_str()) != 0;
  const Sectors sectors = read_log(path);
  unlink(path);
  if (failed || sectors.empty()) return absl::UnavailableError(absl::StrCat("--ncu: this failed: ", command));
  fmt::print("\n{:>6} {:>6}  sectors a request, most of loads and stores\n", "loads", "stores");
  for (const auto& [kernel, most] : sectors) fmt::print("{:>6.1f} {:>6.1f}  {}\n", most.first, most.second, kernel);
  return absl::OkStatus();
}

}  // namespace telar::bench
