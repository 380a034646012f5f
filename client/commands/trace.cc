#include "client/output/trace.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <sstream>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/trace_job.h"

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

absl::Status write(const std::string& path, const TraceSet& traces) {
  std::ofstream file(path, std::ios::binary);
  traces.write(file);
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::Status read_files(const TraceOptions& options, TraceSet& traces) {
  for (const std::string& path : options.of) {
    if (const absl::Status status = add_path(path, traces); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// What is wrong with the command line.
absl::Status check_line(const Context& context, const TraceOptions& options, uint64_t& step) {
  const Output output = context.options.output;
  if (output == Output::kYaml || output == Output::kName) {
    return absl::InvalidArgumentError("--output: trace prints table, wide or json");
  }
  if (options.steps == 0) return absl::InvalidArgumentError("--steps: got 0, want 1 or more");
  if (!names_files(options.of)) {
    if (options.of.size() == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("of one job at a time; ", options.of[1], " is no file either"));
  }
  if (options.step.empty() || (absl::SimpleAtoi(options.step, &step) && step > 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--step: got '", options.step, "', of files want a number"));
}

}  // namespace

bool names_files(const std::vector<std::string>& of) {
  return std::any_of(of.begin(), of.end(), [](const std::string& one) {
    std::error_code error;
    return one.starts_with('/') || one.starts_with('.') || one.ends_with(".json") || fs::exists(one, error);
  });
}

int trace(Context& context, const TraceOptions& options) {
  uint64_t step = 0;
  absl::Status status = check_line(context, options, step);
  TraceSet traces(step, options.steps);
  std::string to = options.to;
  if (status.ok() && names_files(options.of)) {
    status = read_files(options, traces);
  } else if (status.ok()) {
    FetchedTrace fetched = fetch_trace(context, options);
    if (!fetched.traces) return fetched.code;
    traces = *std::move(fetched.traces);
    if (to.empty()) to = absl::StrCat("trace-", fetched.name, ".json");
  }
  if (status.ok()) status = traces.join();
  if (status.ok() && !to.empty()) status = write(to, traces);
  if (!status.ok()) {
    context.err() << "error: " << std::string(status.message()) << "\n";
    return kUsage;
  }
  if (!to.empty()) context.err() << to << ": " << traces.line() << "; open it at https://ui.perfetto.dev\n";
  context.out() << (context.options.output == Output::kJson ? traces.figures()
                                                            : traces.tables(context.wide(), context.header()));
  return kOk;
}

}  // namespace telar::client
