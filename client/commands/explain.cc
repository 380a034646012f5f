#include "client/spec/explain.h"

#include <ostream>

#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"

namespace telar::client {

int explain_field(Context& context, const std::string& path) {
  const absl::StatusOr<std::string> page = explain(path);
  if (!page.ok()) {
    context.err() << "error: " << std::string(page.status().message()) << "\n";
    return kUsage;
  }
  context.out() << *page;
  return kOk;
}

}  // namespace telar::client
