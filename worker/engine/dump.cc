#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "worker/engine/graph.h"
#include "worker/engine/plan.h"

namespace telar::engine {
namespace {

absl::string_view class_name(const Buffer& buffer) {
  const std::string_view name = buffer.lifetime == Lifetime::kExternal ? "external" : name_of(buffer.memory_class);
  return {name.data(), name.size()};
}

// "RW grads[256, 512) 'bucket0'"
std::string access_text(const Program& program, const Plan& plan, const Access& access) {
  const Buffer& buffer = program.buffers()[access.buffer];
  const uint64_t base = plan.offsets[access.buffer];
  return absl::StrCat(access.reads() ? "R" : "", access.writes() ? "W" : "", " ", class_name(buffer), "[",
                      base + access.begin, ", ", base + access.end, ") '", buffer.name, "'");
}

std::string quoted(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

bool waits_for(const Plan& plan, OpId op, OpId earlier) {
  const std::vector<uint32_t>& waits = plan.ops[op].waits;
  return std::find(waits.begin(), waits.end(), plan.ops[earlier].record) != waits.end();
}

}  // namespace

std::string to_text(const Program& program, const Plan& plan) {
  std::string text = absl::StrCat(program.ops().size(), " ops, ", plan.lanes.size(), " lanes, ", plan.events,
                                  " events, ", plan.total_bytes(), " bytes\n");
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    if (plan.arena_bytes[i] == 0) continue;
    const std::string_view name = name_of(static_cast<MemoryClass>(i));
    absl::StrAppend(&text, "arena ", absl::string_view(name.data(), name.size()), " ", plan.arena_bytes[i], "\n");
  }
  for (OpId op = 0; op < program.ops().size(); ++op) {
    const PlannedOp& planned = plan.ops[op];
    absl::StrAppend(&text, op, " ", plan.lanes[planned.lane].to_string(), " '", program.ops()[op].name, "'");
    if (!planned.waits.empty()) absl::StrAppend(&text, " waits ", absl::StrJoin(planned.waits, ","));
    if (planned.record != kNoEvent) absl::StrAppend(&text, " records ", planned.record);
    const char* separator = ": ";
    for (const Access& access : program.ops()[op].accesses) {
      absl::StrAppend(&text, separator, access_text(program, plan, access));
      separator = ", ";
    }
    text += "\n";
  }
  return text;
}

std::string to_dot(const Program& program, const Plan& plan) {
  std::string text = "digraph plan {\n  node [shape=box];\n";
  for (uint32_t lane = 0; lane < plan.lanes.size(); ++lane) {
    absl::StrAppend(&text, "  subgraph cluster_", lane, " {\n    label=", quoted(plan.lanes[lane].to_string()), ";\n");
    std::string chain;  // Keeps a lane's ops in one column, in program order.
    for (OpId op = 0; op < program.ops().size(); ++op) {
      if (plan.ops[op].lane != lane) continue;
      absl::StrAppend(&text, "    n", op, " [label=", quoted(program.ops()[op].name), "];\n");
      absl::StrAppend(&chain, chain.empty() ? "" : " -> ", "n", op);
    }
    absl::StrAppend(&text, "    ", chain, " [style=invis, weight=10];\n  }\n");
  }
  const Graph graph = build_placed_graph(program, plan.offsets);
  for (OpId op = 0; op < graph.size(); ++op) {
    for (const Edge& edge : graph[op]) {
      std::string label = edge_kinds_to_string(edge.kinds);
      if (edge.buffer != backend::kNoBuffer) absl::StrAppend(&label, " ", program.buffers()[edge.buffer].name);
      absl::StrAppend(&text, "  n", edge.from, " -> n", op, " [label=", quoted(label),
                      waits_for(plan, op, edge.from) ? ", style=bold" : "", "];\n");
    }
  }
  return text + "}\n";
}

}  // namespace telar::engine
