#include "server/jobs/blame.h"

#include <map>

namespace telar::server::jobs {
namespace {

constexpr int kRemembered = 8;
constexpr int kMany = 3;

}  // namespace

void add_blame(JobRecord& record, v1::FailureClass failure_class, const std::string& node) {
  if (failure_class != v1::CRASH && failure_class != v1::HANG && failure_class != v1::DEVICE) return;
  Blame* blame = record.add_blames();
  blame->set_node(node);
  blame->set_epoch(record.job().epoch());
  if (record.blames_size() > kRemembered)
    record.mutable_blames()->DeleteSubrange(0, record.blames_size() - kRemembered);
}

std::set<std::string> avoided_nodes(const JobRecord& record) {
  std::map<std::string, int> counts;
  for (const Blame& blame : record.blames()) ++counts[blame.node()];
  std::set<std::string> nodes;
  for (const auto& [node, count] : counts) {
    if (count >= kMany && 2 * count > record.blames_size()) nodes.insert(node);
  }
  return nodes;
}

}  // namespace telar::server::jobs
