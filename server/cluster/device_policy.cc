#include "server/cluster/device_policy.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace telar::server::cluster {
namespace {

using Cause = FaultRule::Cause;
using Release = FaultRule::Release;

// The catalog's action in a word behind each; "app": restart the application, "reset": reset the GPU or the machine.
const std::map<int, FaultRule>& xids() {
  static const std::map<int, FaultRule> kXids = {
      {8, {Cause::kApplication, Release::kOperator, "GPU stopped processing"}},      // app
      {11, {Cause::kApplication, Release::kOperator, "invalid push buffer"}},        // app
      {13, {Cause::kApplication, Release::kOperator, "graphics engine exception"}},  // app
      {25, {Cause::kApplication, Release::kOperator, "invalid push buffer"}},        // app
      {31, {Cause::kApplication, Release::kOperator, "GPU memory page fault"}},      // app
      {32, {Cause::kApplication, Release::kOperator, "invalid push buffer"}},        // app
      {37, {Cause::kNotice, Release::kOperator, "driver firmware error"}},           // nothing
      {38, {Cause::kNotice, Release::kOperator, "driver firmware error"}},           // nothing
      {39, {Cause::kApplication, Release::kOperator, "copy engine exception"}},      // app
      {40, {Cause::kApplication, Release::kOperator, "copy engine exception"}},      // app
      {41, {Cause::kApplication, Release::kOperator, "copy engine exception"}},      // app
      {43, {Cause::kApplication, Release::kOperator, "GPU stopped processing"}},     // nothing; the user's code failed
      {44, {Cause::kNotice, Release::kOperator, "fault during a context switch"}},   // nothing
      {45, {Cause::kApplication, Release::kOperator, "preemptive cleanup after other errors"}},  // follow the other one
      {46, {Cause::kDevice, Release::kOperator, "GPU stopped processing"}},                      // reset
      {48, {Cause::kDevice, Release::kOperator, "double bit ECC error"}},                 // reset, by its workflow
      {62, {Cause::kDevice, Release::kOperator, "micro-controller halt"}},                // reset
      {63, {Cause::kNotice, Release::kOperator, "memory row remapped or page retired"}},  // nothing; see remap-pending
      {64, {Cause::kDevice, Release::kOperator, "memory row remapping failed"}},          // reset
      {66, {Cause::kNotice, Release::kOperator, "illegal access by the driver"}},         // nothing
      {67, {Cause::kNotice, Release::kOperator, "illegal access by the driver"}},         // nothing
      {68, {Cause::kApplication, Release::kOperator, "video decoder exception"}},         // app
      {69, {Cause::kApplication, Release::kOperator, "graphics engine class error"}},     // app
      {74, {Cause::kDevice, Release::kOperator, "NVLink error"}},                         // by its workflow
      {79, {Cause::kDevice, Release::kOperator, "GPU has fallen off the bus"}},           // reset of the machine
      {80, {Cause::kApplication, Release::kOperator, "corrupted data sent to the GPU"}},  // app
      {92, {Cause::kNotice, Release::kOperator, "high rate of single bit ECC errors"}},   // nothing
      {93, {Cause::kNotice, Release::kOperator, "InfoROM wears out"}},                    // nothing
      {94, {Cause::kContained, Release::kOperator, "contained memory error"}},            // app; see remap-pending
      {95, {Cause::kDevice, Release::kOperator, "uncontained memory error"}},             // reset
      {106, {Cause::kNotice, Release::kOperator, "test message"}},                        // nothing
      {107, {Cause::kNotice, Release::kOperator, "test message"}},                        // nothing
      {109, {Cause::kDevice, Release::kOperator, "context switch timeout"}},              // reset
      {110, {Cause::kDevice, Release::kOperator, "security fault"}},                      // reset
      {119, {Cause::kDevice, Release::kOperator, "GSP does not answer"}},                 // reset
      {120, {Cause::kDevice, Release::kOperator, "GSP error"}},                           // reset
      {121, {Cause::kNotice, Release::kOperator, "C2C link error"}},                      // nothing
      {136, {Cause::kDevice, Release::kOperator, "link training failed"}},                // reset
      {137, {Cause::kNotice, Release::kOperator, "NVLink privilege error"}},              // nothing
      {140, {Cause::kDevice, Release::kOperator, "unrecovered ECC error"}},               // reset
      {141, {Cause::kNotice, Release::kOperator, "CUDA fast path error"}},                // nothing
      {143, {Cause::kDevice, Release::kOperator, "GPU initialization error"}},            // reset
      {154,
       {Cause::kNotice, Release::kOperator, "the recovery that the driver asks for changed"}},  // tells of another one
      {155, {Cause::kDevice, Release::kOperator, "NVLink error"}},                              // reset
      {156, {Cause::kDevice, Release::kOperator, "resource retired"}},                          // reset
      {157, {Cause::kNotice, Release::kOperator, "resource retirement failed"}},                // nothing
      {158, {Cause::kDevice, Release::kOperator, "fatal timeout"}},                             // reset
      {160, {Cause::kNotice, Release::kOperator, "channel retired"}},                           // nothing
      {161, {Cause::kNotice, Release::kOperator, "channel retirement failed"}},                 // nothing
  };
  return kXids;
}

}  // namespace

FaultRule rule_of(const std::string& code) {
  int xid = 0;
  if (absl::StartsWith(code, "xid-") && absl::SimpleAtoi(code.substr(4), &xid)) {
    const auto found = xids().find(xid);
    return found == xids().end() ? FaultRule{} : found->second;
  }
  if (code == "ecc-uncorrected") return {Cause::kDevice, Release::kOperator, "uncorrected memory error"};
  if (code == "remap-pending") return {Cause::kDevice, Release::kCondition, "memory waits for a reset to be replaced"};
  if (code == "remap-failed") return {Cause::kDevice, Release::kOperator, "memory could not be replaced"};
  if (code == "gpu-lost") return {Cause::kDevice, Release::kOperator, "the driver does not find it"};
  if (absl::StartsWith(code, "nvlink-")) return {Cause::kDevice, Release::kOperator, "NVLink went down"};
  return {Cause::kNotice, Release::kOperator, ""};
}

}  // namespace telar::server::cluster
