// Which devices a gang gets: all that it needs, or none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "telar/v1/rank.pb.h"

namespace telar::server::cluster {

// A device that a gang may take, by the caller's number for it.
struct FreeDevice {
  uint32_t id = 0;
  uint32_t domain = 0;  // Its NVLink domain; numbered within the node, or over all of them.
};

// The devices of one node that a gang may take, those of a domain side by side.
struct FreeNode {
  std::string node;
  std::string rack;  // Empty: unknown, which is as one more rack.
  std::vector<FreeDevice> devices;
};

// How a gang is laid out. Ranks are numbered ((pp * data) + dp) * tensor + tp.
struct GangShape {
  uint32_t tensor = 1;
  uint32_t data = 1;
  uint32_t pipeline = 1;
  uint32_t shard = 1;                  // Neighbouring replicas to keep together; divides data.
  bool tensor_across_domains = false;  // Tensor-parallel groups may be torn where nothing else is free.

  uint32_t world() const { return tensor * data * pipeline; }
  // Devices that have to be in one domain at least. A gang fits exactly where the domains hold world() / unit() of
  // them.
  uint32_t unit() const { return tensor_across_domains ? 1 : tensor; }
};

// Of a complete spec. Replicas are kept together where sharding is hybrid: fewer than all share a state.
GangShape shape_of(const v1::JobSpec& spec);

// Places a gang; number r of the answer is the device of rank r. What talks most is closest: a tensor-parallel group
// has its devices in one NVLink domain; as far as that is possible the shard group around it, then all replicas of a
// stage have theirs on one node, for gradients are many times what flows from stage to stage; and all is on as few
// nodes as possible. Of nodes (and domains) that hold all that is left the fullest is taken, to keep large holes for
// large gangs. Among nodes that are equal in this the next one is of the same rack, so that pipeline neighbours are.
// Pure. Equal input gives equal output.
std::optional<std::vector<uint32_t>> place(std::vector<FreeNode> free, const GangShape& shape);

// Tensor-parallel groups that these devices of one node can hold, each inside one domain.
uint32_t groups_in(const std::vector<v1::Device>& devices, uint32_t tensor);

// Devices of the largest NVLink domain among these of one node.
uint32_t widest_domain(const std::vector<v1::Device>& devices);

}  // namespace telar::server::cluster
