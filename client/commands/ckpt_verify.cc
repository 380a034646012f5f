#include <ostream>

#include "client/commands/ckpt.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "worker/checkpoint/run_files.h"

namespace telar::client {
namespace {

// Nothing is known of what the files hold: they may not be read, or are of a newer format.
bool may_be_good(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status);
}

}  // namespace

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
  int code = kOk;
  for (const std::string& path : paths) {
    const auto reader = checkpoint::CheckpointReader::open(files, path);
    const absl::Status status = reader.ok() ? (*reader)->verify() : reader.status();
    const Output output = context.options.output;
    CheckpointLine line = look_at(path);
    line.state = status.ok() ? "good" : may_be_good(status) ? "unreadable" : "damaged";
    if (line.state == "damaged") code = kDamaged;
    if (line.state == "unreadable" && code == kOk) code = kRefused;
    line.why = std::string(status.message());
    json.push_back(checkpoint_json(line));
    if (output == Output::kJson || output == Output::kYaml) continue;
    context.out() << path << ": " << line.state << (status.ok() ? "" : ": " + line.why) << "\n" << std::flush;
  }
  print_json(context, {{"checkpoints", json}});
  return code;
}

}  // namespace telar::client
