#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/commands/ckpt.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "worker/checkpoint/run_files.h"

namespace telar::client {
namespace {

// The step in the name of a save under way.
uint64_t step_of_temp(const std::string& name) {
  const size_t begin = name.find("step-"), end = name.find_last_of('-');
  return checkpoint::step_of(name.substr(begin, end - begin)).value_or(0);
}

// By step, and what is under way behind what is published.
absl::StatusOr<std::vector<CheckpointLine>> lines_of(const std::string& run_dir) {
  auto& files = checkpoint::FileSystem::posix();
  const std::string parent = checkpoint::checkpoints_dir(run_dir);
  const auto names = files.list(parent);
  std::vector<CheckpointLine> lines;
  if (absl::IsNotFound(names.status())) return lines;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const std::string path = absl::StrCat(parent, "/", name);
    if (checkpoint::step_of(name)) {
      lines.push_back(look_at(path));
    } else if (checkpoint::attempt_of_temp(name)) {
      CheckpointLine line = look_at(path);
      line.state = "unfinished";
      line.why.clear();
      line.step = step_of_temp(name);
      lines.push_back(std::move(line));
    }
  }
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return lines;
}

}  // namespace

int ckpt_ls(Context& context, const std::string& run) {
  const auto target = find_target(context, run);
  if (!target.ok()) return report_file(context, target.status());
  absl::StatusOr<std::vector<CheckpointLine>> lines;
  if (target->checkpoint.empty()) {
    lines = lines_of(target->run_dir);
  } else {
    lines = std::vector<CheckpointLine>{look_at(target->checkpoint)};
  }
  if (!lines.ok()) return report_file(context, lines.status());
  auto json = nlohmann::ordered_json::array();
  for (const CheckpointLine& line : *lines) json.push_back(checkpoint_json(line));
  if (print_json(context, {{"checkpoints", json}})) return kOk;
  if (context.options.output == Output::kName) {
    for (const CheckpointLine& line : *lines) context.out() << line.path << "\n";
  } else if (lines->empty()) {
    context.err() << "no checkpoints in " << target->run_dir << "/ckpt\n";
  } else {
    context.out() << checkpoints_table(*lines, context.wide(), context.header());
  }
  return kOk;
}

}  // namespace telar::client
