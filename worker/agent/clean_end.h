// Whether the end of a rank is a clean one: no process, its device not held, the device's memory back where it was, no
// port that it listened at. A port needs no look of its own: it is a process's, and goes with the last one that has it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "telar/v1/cluster.pb.h"
#include "worker/agent/process.h"

namespace telar::agent {

// How much more than before may be in use on a device: what drivers keep, and other people's small change.
inline constexpr uint64_t kMemorySlack = 512ULL << 20;

struct EndFacts {
  v1::Device device;
  std::optional<ProcessFamily> family;            // Of a rank that was started.
  std::string device_file;                        // "/dev/nvidia3"; empty: there is none to look at.
  std::string state;                              // The daemon's directory; what another one started is not ours.
  int spawner = 0;                                // The parent of whatever a rank left behind.
  int probe = 0;                                  // Its child too, and holds every device.
  std::vector<ProcessFamily> others;              // Living ranks.
  std::optional<uint64_t> used_before, used_now;  // Bytes on the device; absent: nobody can tell.
};

// What is left. Kills what it finds of ours, so that the next look may find less.
std::vector<v1::Residue> find_residues(const EndFacts& facts);

// Processes that have the file open and are nobody's but an ended rank's: children of the spawner, or with the marker
// of one of its ranks, and of none of `others`.
std::vector<int> orphans_on(const EndFacts& facts);

// TCP ports that a process listens at.
std::vector<int> listening_ports(int pid);

}  // namespace telar::agent
