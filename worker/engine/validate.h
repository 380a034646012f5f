// An independent check of a finished plan. It believes nothing but what the executors will do: the lane, waits and
// record of each op, and the arena bytes that it touches.
//
// It plays the ops once, in list order. That order is itself a possible run when each wait has its record earlier in
// the list, so no run can deadlock. The order between lanes is then known only through waits; a vector clock a lane
// and, per arena byte, the last write and the reads since show any two accesses that no run is forced to order (the
// method of data-race detectors such as FastTrack, Flanagan & Freund 2009). Each byte also knows the buffer that it
// holds, which shows buffers that share bytes while both are alive.
#pragma once

#include "absl/status/status.h"
#include "worker/engine/plan.h"

namespace telar::engine {

// INTERNAL names ops and bytes: an op on a lane that is not its own; a wait without an earlier record; an order that
// was asked for and is not kept; an access outside its arena; a race; a read of bytes that hold something else or
// nothing; a persistent buffer overwritten.
absl::Status validate(const Program& program, const Plan& plan);

}  // namespace telar::engine
