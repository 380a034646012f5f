#include "client/output/trace.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"

namespace telar::client {
namespace {

namespace fs = std::filesystem;

// "trace-12.json"
bool is_trace(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with("trace-") || path.extension() != ".json") return false;
  const std::string step = path.stem().string().substr(6);
  return !step.empty() && std::all_of(step.begin(), step.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

absl::Status add_file(const fs::path& path, TraceSet& traces) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path.string()));
  return traces.add(path.string(), content.str());
}

// A file as it is; of a folder what is_trace() below it.
absl::Status add_path(const std::string& path, TraceSet& traces) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return add_file(path, traces);
  std::vector<fs::path> found;
  for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (is_trace(entry->path())) found.push_back(entry->path());
  }
  if (error) return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", error.message()));
  std::sort(found.begin(), found.end());
  for (const fs::path& file : found) {
    const absl::Status status = add_file(file, traces);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status write(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace

int trace(Context& context, const TraceOptions& options) {
  const Output output = context.options.output;
  absl::Status status;
  if (output == Output::kYaml || output == Output::kName) {
    status = absl::InvalidArgumentError("--output: trace prints table, wide or json");
  }
  TraceSet traces(options.step);
  for (size_t i = 0; i < options.paths.size() && status.ok(); ++i) status = add_path(options.paths[i], traces);
  if (status.ok()) status = traces.check();
  if (status.ok() && !options.to.empty()) status = write(options.to, traces.merged());
  if (!status.ok()) {
    context.err() << "error: " << std::string(status.message()) << "\n";
    return kUsage;
  }
  context.out() << (output == Output::kJson ? traces.figures() : traces.tables(context.wide(), context.header()));
  return kOk;
}

}  // namespace telar::client
