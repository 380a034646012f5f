#include "client/output/nodes.h"

#include <functional>
#include <ostream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "client/commands/call.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "common/process.h"

namespace telar::client {

namespace {

template <typename Request>
using NodeMethod = grpc::Status (v1::Nodes::StubInterface::*)(grpc::ClientContext*, const Request&, v1::Node*);

// Sends the request, and prints the node as it is then: its name, or that and what `words` says of it.
template <typename Request>
int change_node(Context& context, NodeMethod<Request> method, Request request, const std::string& node,
                const std::function<std::string(const v1::Node&)>& words) {
  request.set_name(node);
  request.set_request_id(uuid4());
  v1::Node changed;
  const absl::Status status = call(context, /*retry=*/true, [&](grpc::ClientContext* client) {
    return (context.nodes.get()->*method)(client, request, &changed);
  });
  if (!status.ok()) return report(context, status);
  if (context.print_message(changed)) return kOk;
  context.out() << (context.options.output == Output::kName ? changed.name() + "\n" : words(changed));
  return kOk;
}

std::string scheduling_line(const v1::Node& node) {
  return node.name() + " " + v1::Node::Scheduling_Name(node.scheduling()) + "\n";
}

std::string table_of(const Context& context, const v1::ListNodesResponse& nodes) {
  return nodes_table(nodes, context.wide(), context.header(), context.now_seconds()) + closed_lines(nodes);
}

// "gpu:3"
bool parse_device(const std::string& text, v1::ReleaseDeviceRequest& request) {
  const size_t colon = text.find(':');
  v1::ResourceSpec::Kind kind = v1::ResourceSpec::KIND_UNSPECIFIED;
  uint32_t index = 0;
  if (colon == std::string::npos ||
      !v1::ResourceSpec::Kind_Parse(absl::AsciiStrToUpper(text.substr(0, colon)), &kind) ||
      kind == v1::ResourceSpec::KIND_UNSPECIFIED || !absl::SimpleAtoi(text.substr(colon + 1), &index)) {
    return false;
  }
  request.set_kind(kind);
  request.set_index(index);
  return true;
}

}  // namespace

int cordon_node(Context& context, const NodeOptions& options) {
  v1::CordonNodeRequest request;
  request.set_reason(options.reason);
  return change_node(context, &v1::Nodes::StubInterface::CordonNode, request, options.node, scheduling_line);
}

int uncordon_node(Context& context, const NodeOptions& options) {
  return change_node(context, &v1::Nodes::StubInterface::UncordonNode, v1::UncordonNodeRequest(), options.node,
                     scheduling_line);
}

int drain_node(Context& context, const NodeOptions& options) {
  v1::DrainNodeRequest request;
  request.set_reason(options.reason);
  return change_node(context, &v1::Nodes::StubInterface::DrainNode, request, options.node, scheduling_line);
}

int release_device(Context& context, const ReleaseOptions& options) {
  v1::ReleaseDeviceRequest request;
  if (!parse_device(options.device, request)) {
    context.err() << "error: device: got '" << options.device << "', want KIND:INDEX such as gpu:3\n";
    return kUsage;
  }
  return change_node(context, &v1::Nodes::StubInterface::ReleaseDevice, request, options.node,
                     [&context](const v1::Node& node) {
                       v1::ListNodesResponse one;
                       *one.add_nodes() = node;
                       return table_of(context, one);
                     });
}

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
    context.out() << table_of(context, *all);
  }
  return kOk;
}

}  // namespace telar::client
