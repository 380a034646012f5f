#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/commands/ckpt.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "worker/checkpoint/retention.h"

namespace telar::client {

int ckpt_rm(Context& context, const CkptRmOptions& options) {
  const auto path = find_checkpoint(context, options.checkpoint, RunMeans::kNothing);
  if (!path.ok()) return report_file(context, path.status());
  absl::Status status = checkpoint::remove_checkpoint(checkpoint::FileSystem::posix(), *path, options.force);
  if (absl::IsFailedPrecondition(status) && !options.force) {
    status = absl::FailedPreconditionError(absl::StrCat(status.message(), "; --force removes it all the same"));
  }
  if (!status.ok()) return report_file(context, status);
  if (print_json(context, {{"path", *path}, {"removed", true}})) return kOk;
  context.out() << (context.options.output == Output::kName ? "" : "removed ") << *path << "\n";
  return kOk;
}

}  // namespace telar::client
