#include "bench/sectors.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace telar::bench {
namespace {

// Counters of all processors together. Their own ratio of the two would be the same; these are also in what the tool
// shows of memory.
constexpr const char* kLoadSectors = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum";
constexpr const char* kLoadRequests = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum";
constexpr const char* kStoreSectors = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum";
constexpr const char* kStoreRequests = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum";

// Fields of a line of CSV with every field in quotes; a quote inside is doubled. Whatever is between fields is passed
// by.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  bool inside = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool quote = line[i] == '"';
    if (!inside) {
      if (quote) fields.emplace_back();
      inside = quote;
    } else if (!quote) {
      fields.back() += line[i];
    } else if (i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else {
      inside = false;
    }
  }
  return fields;
}

// "2,097,152".
bool read_count(const std::string& text, double* number) {
  return absl::SimpleAtod(absl::StrReplaceAll(text, {{",", ""}}), number);
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::map<std::string, SectorsPerRequest> read_sectors(std::istream& csv) {
  size_t id = 0, kernel = 0, metric = 0, value = 0;
  std::map<std::pair<std::string, std::string>, std::map<std::string, double>> launches;  // By id and kernel: counts.
  for (std::string line; std::getline(csv, line);) {
    const std::vector<std::string> fields = fields_of(line);
    if (value == 0) {  // Not yet at the heading.
      for (size_t i = 0; i < fields.size(); ++i) {
        if (fields[i] == "ID") id = i;
        if (fields[i] == "Kernel Name") kernel = i;
        if (fields[i] == "Metric Name") metric = i;
        if (fields[i] == "Metric Value") value = i;
      }
      continue;
    }
    double number = 0;
    if (fields.size() <= std::max({id, kernel, metric, value}) || !read_count(fields[value], &number)) continue;
    launches[{fields[id], fields[kernel]}][fields[metric]] = number;
  }
  std::map<std::string, SectorsPerRequest> sectors;
  for (auto& [launch, counts] : launches) {
    SectorsPerRequest& most = sectors[launch.second];
    const auto ratio = [&counts](const char* of, const char* to) {
      return counts[to] > 0 ? counts[of] / counts[to] : 0;
    };
    most.loads = std::max(most.loads, ratio(kLoadSectors, kLoadRequests));
    most.stores = std::max(most.stores, ratio(kStoreSectors, kStoreRequests));
  }
  return sectors;
}

absl::Status print_sectors(int argc, char** argv) {
  if (std::system("command -v ncu > /dev/null 2>&1") != 0) return absl::NotFoundError("--ncu: no ncu on the PATH");
  char path[] = "/tmp/bench_sectors_XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return absl::UnavailableError("--ncu: no temporary file");
  close(file);
  // Whole counts, whatever language the user's terminal speaks.
  std::string command =
      absl::StrCat("LC_ALL=C ncu --csv --print-units base --kernel-name regex:_kernel --log-file ", path, " --metrics ",
                   kLoadSectors, ",", kLoadRequests, ",", kStoreSectors, ",", kStoreRequests);
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument != "--ncu") absl::StrAppend(&command, " ", quoted(argument));
  }
  absl::StrAppend(&command, " --once > /dev/null");
  const bool failed = std::system(command.c_str()) != 0;
  std::ifstream log(path);
  const auto sectors = read_sectors(log);
  unlink(path);
  if (failed || sectors.empty()) return absl::UnavailableError(absl::StrCat("--ncu: this failed: ", command));
  fmt::print("\n{:>6} {:>6}  sectors a request, most of loads and stores\n", "loads", "stores");
  for (const auto& [kernel, most] : sectors) fmt::print("{:>6.1f} {:>6.1f}  {}\n", most.loads, most.stores, kernel);
  return absl::OkStatus();
}

}  // namespace telar::bench
