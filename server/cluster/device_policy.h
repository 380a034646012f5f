// Whose fault a device's fault is, and how the device comes back. One table, by the code that workers report:
//   xid-N             an event of NVIDIA's driver. Source: "Xid Errors", docs.nvidia.com/deploy/xid-errors, whose
//   catalog
//                     gives each number an immediate action: restart the application, reset the GPU, or nothing
//   ecc-uncorrected   NVML's count of uncorrected memory errors has grown
//   nvlink-N-down     a link that was up is down
//   remap-pending     memory rows (or pages) wait for a reset to be replaced
//   remap-failed      and could not be
//   gpu-lost          the driver does not find the device any more
#pragma once

#include <string>

namespace telar::server::cluster {

struct FaultRule {
  enum class Cause {
    kApplication,  // What ran on the device did it: only noted.
    kDevice,       // The device: nobody gets it, and what runs there fails.
    kContained,    // The device, which goes on: what runs there fails, and may come back to it.
    kNotice,       // Neither; worth a note.
  };
  enum class Release {
    kOperator,   // Somebody looked at it, and reset or replaced it.
    kCondition,  // By itself, once the worker does not report it any more.
  };
  Cause cause = Cause::kDevice;
  Release release = Release::kOperator;
  const char* meaning = "";  // A few words; empty for a code that the table does not have.
};

// An Xid that is not in the table counts as the device's: to lose one for a while is cheaper than to lose run after
// run on it. Any other unknown code is a notice.
FaultRule rule_of(const std::string& code);

}  // namespace telar::server::cluster
