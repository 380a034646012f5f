#include "client/output/nodes.h"

#include <ostream>

#include "client/commands/call.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "common/process.h"

namespace telar::client {

namespace {

template <typename Request>
using NodeMethod = grpc::Status (v1::Nodes::StubInterface::*)(grpc::ClientContext*, const Request&, v1::Node*);

template <typename Request>
int change_node(Context& context, NodeMethod<Request> method, Request request, const std::string& node) {
  request.set_name(node);
  request.set_request_id(uuid4());
  v1::Node changed;
  const absl::Status status = call(context, /*retry=*/true, [&](grpc::ClientContext* client) {
    return (context.nodes.get()->*method)(client, request, &changed);
  });
  if (!status.ok()) return report(context, status);
  if (context.print_message(changed)) return kOk;
  context.out() << changed.name();
  if (context.options.output != Output::kName) context.out() << " " << v1::Node::Scheduling_Name(changed.scheduling());
  context.out() << "\n";
  return kOk;
}

}  // namespace

int cordon_node(Context& context, const NodeOptions& options) {
  v1::CordonNodeRequest request;
  request.set_reason(options.reason);
  return change_node(context, &v1::Nodes::StubInterface::CordonNode, request, options.node);
}

int uncordon_node(Context& context, const NodeOptions& options) {
  return change_node(context, &v1::Nodes::StubInterface::UncordonNode, v1::UncordonNodeRequest(), options.node);
}

int drain_node(Context& context, const NodeOptions& options) {
  v1::DrainNodeRequest request;
  request.set_reason(options.reason);
  return change_node(context, &v1::Nodes::StubInterface::DrainNode, request, options.node);
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
    context.out() << nodes_table(*all, context.wide(), context.header(), context.now_seconds())
                  << quarantine_lines(*all);
  }
  return kOk;
}

}  // namespace telar::client
