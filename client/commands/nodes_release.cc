#include <ostream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "client/commands/call.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/output/nodes.h"
#include "common/process.h"

namespace telar::client {

int release_device(Context& context, const ReleaseOptions& options) {
  v1::ReleaseDeviceRequest request;
  request.set_name(options.node);
  request.set_request_id(uuid4());
  const size_t colon = options.device.find(':');
  v1::ResourceSpec::Kind kind = v1::ResourceSpec::KIND_UNSPECIFIED;
  uint32_t index = 0;
  if (colon == std::string::npos ||
      !v1::ResourceSpec::Kind_Parse(absl::AsciiStrToUpper(options.device.substr(0, colon)), &kind) ||
      !absl::SimpleAtoi(options.device.substr(colon + 1), &index)) {
    context.err() << "error: device: got '" << options.device << "', want KIND:INDEX such as gpu:3\n";
    return kUsage;
  }
  request.set_kind(kind);
  request.set_index(index);
  v1::Node node;
  const absl::Status status = call(context, /*retry=*/true, [&](grpc::ClientContext* client) {
    return context.nodes->ReleaseDevice(client, request, &node);
  });
  if (!status.ok()) return report(context, status);
  if (context.print_message(node)) return kOk;
  v1::ListNodesResponse one;
  *one.add_nodes() = node;
  context.out() << nodes_table(one, context.wide(), context.header(), context.now_seconds()) << quarantine_lines(one);
  return kOk;
}

}  // namespace telar::client
