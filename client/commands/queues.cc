#include "client/output/queues.h"

#include <ostream>

#include "client/commands/call.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"

namespace telar::client {

int queues(Context& context) {
  const absl::StatusOr<v1::ListQueuesResponse> all =
      call(context, &v1::Jobs::StubInterface::ListQueues, v1::ListQueuesRequest());
  if (!all.ok()) return report(context, all.status());
  if (context.print_message(*all)) return kOk;
  if (context.options.output == Output::kName) {
    for (const v1::Queue& queue : all->queues()) context.out() << queue.name() << "\n";
  } else {
    context.out() << queues_table(*all, context.header());
  }
  return kOk;
}

}  // namespace telar::client
