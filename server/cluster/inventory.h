// The devices of the cluster at one moment, flat and numbered, so that a round of the scheduler counts instead of
// searching.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/cluster/placement.h"

namespace telar::server::cluster {

// The label by which nodes that are close to each other are known.
inline constexpr const char* kRackLabel = "rack";

struct Inventory {
  struct Node {
    std::string name;
    std::map<std::string, std::string> labels;
    bool ready = false;  // It answers, has said what runs there, and runs nothing that nobody asked for.
    bool open = true;    // Neither cordoned nor draining.
    bool spare = false;  // For jobs that lost a node.
    uint32_t first = 0;  // Its devices are first, first + 1, ...
    uint32_t count = 0;
  };
  struct Device {
    uint32_t node = 0;
    uint32_t domain = 0;  // Its NVLink domain, numbered over the whole cluster; all of one kind.
    v1::ResourceSpec::Kind kind = v1::ResourceSpec::KIND_UNSPECIFIED;
    uint32_t index = 0;        // Ordinal on its node.
    std::string holder;        // The job that has it; empty: nobody.
    bool quarantined = false;  // Nobody gets it.
  };
  std::vector<Node> nodes;      // In order of name.
  std::vector<Device> devices;  // In order of node.
  uint32_t domains = 0;
};

// A device with its place.
struct Slot {
  std::string node;
  v1::Device device;
};

}  // namespace telar::server::cluster
