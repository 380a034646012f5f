#include <ostream>

#include "client/commands/ckpt.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "worker/checkpoint/retention.h"

namespace telar::client {

int ckpt_pin(Context& context, const std::string& checkpoint, bool pinned) {
  const auto path = find_checkpoint(context, checkpoint, RunMeans::kNothing);
  if (!path.ok()) return report_file(context, path.status());
  auto& files = checkpoint::FileSystem::posix();
  const absl::Status status = pinned ? checkpoint::pin(files, *path) : checkpoint::unpin(files, *path);
  if (!status.ok()) return report_file(context, status);
  if (print_json(context, {{"path", *path}, {"pinned", pinned}})) return kOk;
  const char* done = pinned ? "pinned " : "unpinned ";
  context.out() << (context.options.output == Output::kName ? "" : done) << *path << "\n";
  return kOk;
}

}  // namespace telar::client
