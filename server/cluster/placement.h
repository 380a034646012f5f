// Which devices a gang gets: all that it needs, or none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "telar/v1/rank.pb.h"

namespace telar::server::cluster {

// The devices of one node that a gang may take now.
struct FreeNode {
  std::string node;
  std::vector<v1::Device> devices;
};

struct Slot {
  std::string node;
  v1::Device device;
};

// Places `world` ranks on as few nodes as possible; of nodes that hold all of them the fullest is taken, to keep large
// holes for large gangs. Rank r of the job gets slot r: ranks are consecutive on a node, and since ranks are numbered
// ((pp * DP) + dp) * TP + tp a node takes whole groups of `tensor` ranks, unless no node has that many devices at all
// (`largest_node`). Pure. Equal input gives equal output.
std::optional<std::vector<Slot>> place(std::vector<FreeNode> free, uint32_t world, uint32_t tensor,
                                       uint32_t largest_node);

}  // namespace telar::server::cluster
