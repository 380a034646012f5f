#include <ostream>

#include "client/commands/ckpt.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "worker/checkpoint/run_files.h"

namespace telar::client {

int ckpt_verify(Context& context, const std::string& name) {
  auto& files = checkpoint::FileSystem::posix();
  const auto target = find_target(context, name);
  if (!target.ok()) return report_file(context, target.status());
  std::vector<std::string> paths;
  if (target->checkpoint.empty()) {
    const auto published = checkpoint::list_published(files, target->run_dir);
    if (!published.ok()) return report_file(context, published.status());
    for (const auto& one : *published) paths.insert(paths.begin(), one.path);
  } else {
    paths.push_back(target->checkpoint);
  }
  if (paths.empty()) {
    return report_file(context, absl::NotFoundError(target->run_dir + "/ckpt: there are no checkpoints"));
  }
  auto json = nlohmann::ordered_json::array();
  bool damaged = false;
  for (const std::string& path : paths) {
    const auto reader = checkpoint::CheckpointReader::open(files, path);
    const absl::Status status = reader.ok() ? (*reader)->verify() : reader.status();
    const Output output = context.options.output;
    damaged = damaged || !status.ok();
    CheckpointLine line = look_at(path);
    line.state = status.ok() ? "good" : "damaged";
    line.why = std::string(status.message());
    json.push_back(checkpoint_json(line));
    if (output == Output::kJson || output == Output::kYaml) continue;
    context.out() << path << (status.ok() ? ": good\n" : ": damaged: " + line.why + "\n") << std::flush;
  }
  print_json(context, {{"checkpoints", json}});
  return damaged ? kDamaged : kOk;
}

}  // namespace telar::client
