#include "client/output/nodes.h"

#include <ostream>

#include "client/commands/call.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"

namespace telar::client {

int nodes(Context& context) {
  const absl::StatusOr<v1::ListNodesResponse> all =
      call(context, &v1::Jobs::StubInterface::ListNodes, v1::ListNodesRequest());
  if (!all.ok()) return report(context, all.status());
  if (context.print_message(*all)) return kOk;
  if (context.options.output == Output::kName) {
    for (const v1::Node& node : all->nodes()) context.out() << node.name() << "\n";
  } else if (all->nodes().empty()) {
    context.err() << "no nodes; start telar-worker with the address of this coordinator\n";
  } else {
    context.out() << nodes_table(*all, context.wide(), context.header(), context.now_seconds())
                  << quarantine_lines(*all);
  }
  return kOk;
}

}  // namespace telar::client
