// How long an op takes by the rates of a device: of its kernel, its shapes and its group alone. What runs beside it is
// replay.h's business.
#pragma once

#include <vector>

#include "telar/v1/forecast.pb.h"
#include "worker/backend/collectives.h"
#include "worker/engine/op.h"

namespace telar::forecast {

// How the members of a group reach each other. Ranks are placed in order: rank / domain is a rank's domain.
struct GroupLink {
  int size = 1;
  int in_domain = 1;   // Members of the domain that has fewest.
  bool within = true;  // All are in one.
};
GroupLink link_of(const backend::Group& group, int domain);

// By how much faster than sustained what arithmetic bounds runs on a device that computes for the share `busy` of a
// step: the power of both parts stays what computing draws, which goes with the cube of the clock. At most to where no
// power is missing.
double clock_of(const v1::Rates& rates, double busy);

// Bytes between memory and the op if it fetches everything once and writes everything once. Of a table that ids point
// into, at most a row an id.
double traffic_of(const engine::Op& op);

class OpCosts {
 public:
  // `groups` by engine::GroupId. `rates`, which must outlive this, are checked.
  OpCosts(const v1::Rates& rates, std::vector<GroupLink> groups) : rates_(rates), groups_(std::move(groups)) {}

  // At a clock that is so much higher than that of the sustained rates.
  double seconds(const engine::Op& op, double clock = 1) const;

  // A product of [rows, depth] by [depth, columns] at `share` of the 16-bit rate; `bytes` is what it moves.
  double product(double rows, double columns, double depth, double share, double bytes, double clock = 1) const;
  // A call of a group; `bytes` as CommCall has them.
  double call(engine::CommKind kind, const GroupLink& group, double bytes) const;
  bool within_domain(const engine::CommCall& call) const { return groups_[call.group].within; }
  // By which what computes is slower beside such a call.
  double slowdown(const engine::CommCall& call) const {
    const v1::LinkRates& rates = links(groups_[call.group]);
    return call.kind == engine::CommKind::kExchange || !call.point_to_point() ? rates.slowdown()
                                                                              : rates.send_slowdown();
  }

 private:
  double kernel(const engine::Op& op, double clock) const;
  double product(const engine::Op& op, double clock) const;
  double attention(const engine::Op& op, bool backward, double clock) const;
  const v1::LinkRates& links(const GroupLink& group) const { return group.within ? rates_.domain() : rates_.network(); }
  double bus(engine::CommKind kind, const GroupLink& group, double bytes) const;

  const v1::Rates& rates_;
  const std::vector<GroupLink> groups_;
};

}  // namespace telar::forecast
