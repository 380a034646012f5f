// What a rank's flight file says, read by another process at any moment: while the rank runs, is stopped, or is gone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/flight/format.h"

namespace telar::flight {

// What is looked at often.
struct Glance {
  Activity activity = Activity::kUnknown;
  uint64_t beats = 0;
};
// Nothing when there is no such file.
std::optional<Glance> glance(const std::string& path);

struct Call {
  std::string group;
  std::vector<uint32_t> ranks;  // Of the group.
  uint64_t sequence = 0;
  std::string op;
  uint64_t bytes = 0;
  uint64_t step = 0;
  State state = State::kDone;
  double seconds = 0;  // Since it is in that state; of one that was over before anyone noted when: since it began.
};

// The last `most` calls, oldest first; before them, of each group, its last call and its oldest one that is not over,
// where they are older. A call that is being written down at this moment is left out. NOT_FOUND: no file. DATA_LOSS: it
// is none of ours.
absl::StatusOr<std::vector<Call>> read_calls(const std::string& path, size_t most);

}  // namespace telar::flight
