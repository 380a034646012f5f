#include "client/output/nodes.h"

#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/format.h"
#include "client/output/table.h"

namespace telar::client {
namespace {

// "2 cpu", "8 gpu", "1 cpu, 4 gpu"
std::string devices_of(const v1::Node& node) {
  std::map<std::string, int> kinds;
  for (const auto& one : node.devices()) {
    ++kinds[absl::AsciiStrToLower(v1::ResourceSpec::Kind_Name(one.device().kind()))];
  }
  return or_dash(absl::StrJoin(
      kinds, ", ", [](std::string* out, const auto& kind) { absl::StrAppend(out, kind.second, " ", kind.first); }));
}

std::string model_of(const v1::Node& node) {
  std::set<std::string> models;
  for (const auto& one : node.devices()) {
    models.insert(absl::StrCat(one_line(one.device().model()), " ", bytes(one.device().memory_bytes())));
  }
  return or_dash(absl::StrJoin(models, ", "));
}

bool open(const v1::Node& node) { return node.scheduling() <= v1::Node::OPEN; }

// "open", "draining"; what a spare is kept for matters while it is open.
std::string scheduling_of(const v1::Node& node) {
  if (open(node)) return node.spare() ? "spare" : "open";
  return absl::AsciiStrToLower(v1::Node::Scheduling_Name(node.scheduling()));
}

std::string labels_of(const v1::Node& node) {
  const std::map<std::string, std::string> labels(node.labels().begin(), node.labels().end());
  return or_dash(absl::StrJoin(labels, ",", [](std::string* out, const auto& label) {
    absl::StrAppend(out, one_line(label.first), "=", one_line(label.second));
  }));
}

}  // namespace

std::string nodes_table(const v1::ListNodesResponse& nodes, bool wide, bool header, int64_t now_seconds) {
  std::vector<std::string> titles = {"NODE", "STATE", "DEVICES", "FREE", "SCHEDULING", "JOBS", "HEARTBEAT"};
  if (wide) titles.insert(titles.end(), {"REASON", "LABELS", "MODEL", "METRICS", "VERSION", "REGISTERED"});
  Table table(titles);
  for (const v1::Node& node : nodes.nodes()) {
    int free = 0;
    std::set<std::string> jobs;
    for (const auto& one : node.devices()) {
      if (!one.job().empty()) {
        jobs.insert(id_of(one.job()));
      } else if (one.quarantine().empty()) {
        ++free;
      }
    }
    const bool usable = node.state() == v1::Node::READY && open(node);
    std::vector<std::string> row = {one_line(node.name()),
                                    v1::Node::State_Name(node.state()),
                                    devices_of(node),
                                    usable ? absl::StrCat(free) : "-",
                                    scheduling_of(node),
                                    or_dash(absl::StrJoin(jobs, ",")),
                                    age(node.heartbeat_time(), now_seconds)};
    if (wide) {
      row.insert(row.end(), {or_dash(one_line(node.scheduling_reason())), labels_of(node), model_of(node),
                             or_dash(one_line(node.metrics_address())), or_dash(one_line(node.version())),
                             age(node.register_time(), now_seconds)});
    }
    table.add(std::move(row));
  }
  return table.text(header);
}

std::string closed_lines(const v1::ListNodesResponse& nodes) {
  std::string lines;
  for (const v1::Node& node : nodes.nodes()) {
    if (!open(node) && !node.scheduling_reason().empty()) {
      absl::StrAppend(&lines, one_line(node.name()), " is ", scheduling_of(node), ": ",
                      one_line(node.scheduling_reason()), "\n");
    }
    for (const v1::DeviceStatus& one : node.devices()) {
      if (one.quarantine().empty()) continue;
      absl::StrAppend(&lines, one_line(node.name()), " ",
                      absl::AsciiStrToLower(v1::ResourceSpec::Kind_Name(one.device().kind())), ":",
                      one.device().index(), " is in quarantine since ", time_text(one.quarantine_time()), ": ",
                      one_line(one.quarantine()), "\n");
    }
  }
  return lines;
}

}  // namespace telar::client
