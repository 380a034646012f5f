#include "server/auth/access.h"

#include <map>

namespace telar::server::auth {
namespace {

constexpr size_t kSmall = 16 << 10;  // Names, masks, reasons.
constexpr size_t kSpec = 256 << 10;
constexpr size_t kArray = 2 << 20;   // A spec and ten thousand values.
constexpr size_t kFrames = 4 << 20;  // What a worker sends: gRPC's own limit.

constexpr Access kTable[] = {
    {"telar.v1.Jobs/CreateJob", Scope::kProject, Role::kSubmitter, true, kSpec},
    {"telar.v1.Jobs/CreateJobArray", Scope::kProject, Role::kSubmitter, true, kArray},
    {"telar.v1.Jobs/GetJob", Scope::kProject, Role::kViewer, false, kSmall},
    // Without a project: of those projects that the caller may view.
    {"telar.v1.Jobs/ListJobs", Scope::kProject, Role::kViewer, false, kSmall},
    {"telar.v1.Jobs/CancelJob", Scope::kOwnJob, Role::kSubmitter, true, kSmall},
    {"telar.v1.Jobs/UpdateJob", Scope::kOwnJob, Role::kSubmitter, true, kSpec},
    {"telar.v1.Jobs/ListQueues", Scope::kAnyProject, Role::kViewer, false, kSmall},
    {"telar.v1.Jobs/WatchJob", Scope::kProject, Role::kViewer, false, kSmall},
    {"telar.v1.Jobs/ReadLog", Scope::kProject, Role::kViewer, false, kSmall},
    {"telar.v1.Jobs/TraceJob", Scope::kProject, Role::kSubmitter, true, kSmall},
    {"telar.v1.Jobs/ReadTrace", Scope::kProject, Role::kViewer, false, kSmall},
    {"telar.v1.Jobs/ListNodes", Scope::kAnyProject, Role::kViewer, false, kSmall},
    {"telar.v1.Jobs/GetVersion", Scope::kAnyProject, Role::kViewer, false, kSmall},

    {"telar.v1.Nodes/CordonNode", Scope::kCluster, Role::kOperator, true, kSmall},
    {"telar.v1.Nodes/UncordonNode", Scope::kCluster, Role::kOperator, true, kSmall},
    {"telar.v1.Nodes/DrainNode", Scope::kCluster, Role::kOperator, true, kSmall},
    {"telar.v1.Nodes/ReleaseDevice", Scope::kCluster, Role::kOperator, true, kSmall},

    {"telar.v1.Cluster/RegisterNode", Scope::kNode, Role::kNone, true, kFrames},
    {"telar.v1.Cluster/Heartbeat", Scope::kNode, Role::kNone, false, kFrames},
    {"telar.v1.Cluster/AppendLog", Scope::kNode, Role::kNone, false, kFrames},
    {"telar.v1.Cluster/ReportEvents", Scope::kNode, Role::kNone, false, kFrames},
    {"telar.v1.Cluster/ReportFlight", Scope::kNode, Role::kNone, false, kFrames},

    {"telar.v1.Rendezvous/PutKey", Scope::kNode, Role::kNone, false, kFrames},
    {"telar.v1.Rendezvous/GetKeys", Scope::kNode, Role::kNone, false, kFrames},
    {"telar.v1.Rendezvous/ReadClock", Scope::kNode, Role::kNone, false, kSmall},

    {"telar.v1.Checkpoints/CommitCheckpoint", Scope::kNode, Role::kNone, true, kSmall},
    {"telar.v1.Checkpoints/LastCommit", Scope::kNode, Role::kNone, false, kSmall},
};

}  // namespace

const Access* access_of(const std::string& method) {
  static const std::map<std::string, const Access*> kByMethod = [] {
    std::map<std::string, const Access*> all;
    for (const Access& one : kTable) all.emplace(one.method, &one);
    return all;
  }();
  const auto found = kByMethod.find(method);
  return found == kByMethod.end() ? nullptr : found->second;
}

}  // namespace telar::server::auth
