// The queues of the cluster, from the file that --queues names.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/jobs/queue.h"

namespace telar::server::jobs {

// YAML:
//   queues:
//     - {name: research, weight: 2}
//     - {name: urgent, priority: 10, preempt: true, quota_devices: 16}
// A queue "default" is added where there is none. INVALID_ARGUMENT lists every mistake with its place, one a line.
absl::StatusOr<std::vector<QueueConfig>> read_queues(const std::string& path);
absl::StatusOr<std::vector<QueueConfig>> parse_queues(const std::string& path, const std::string& text);

}  // namespace telar::server::jobs
