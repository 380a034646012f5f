#include "client/output/queues.h"

#include "absl/strings/str_cat.h"
#include "client/output/format.h"
#include "client/output/table.h"

namespace telar::client {

std::string queues_table(const v1::ListQueuesResponse& queues, bool header) {
  Table table({"QUEUE", "PRIORITY", "WEIGHT", "QUOTA", "HELD", "RUNNING", "QUEUED", "WANTED"});
  for (const v1::Queue& queue : queues.queues()) {
    table.add({one_line(queue.name()), absl::StrCat(queue.priority()), absl::StrCat(queue.weight()),
               queue.quota_devices() == 0 ? "-" : absl::StrCat(queue.quota_devices()),
               absl::StrCat(queue.held_devices()), absl::StrCat(queue.running_jobs()),
               absl::StrCat(queue.queued_jobs()), absl::StrCat(queue.queued_devices())});
  }
  return table.text(header);
}

}  // namespace telar::client
