// One allocation epoch of a job, from its placement until its last process is gone. Pure: each function changes a
// draft, by what was seen or asked; settle() then moves the state machine as far as it goes.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "server/cluster/placement.h"
#include "server/jobs/draft.h"
#include "telar/v1/cluster.pb.h"

namespace telar::server::jobs {

// QUEUED -> STARTING with the next epoch; slot r is rank r's.
void begin_epoch(Draft& draft, const std::vector<cluster::Slot>& slots);

// The worker tells of a rank of this epoch. A process that dies of our own STOP is no failure: by SIGTERM, or by
// SIGKILL once `grace` is over, or with its state saved once its worker was `told_to_stop` (before, someone else
// asked).
void observe(Draft& draft, const v1::RankStatus& status, bool told_to_stop, std::chrono::milliseconds grace);

// The worker does not have the rank. `heard_stop`: and will not start it any more.
void observe_absence(Draft& draft, uint32_t rank, bool heard_stop);

// The lease of the rank's node ran out. An exited rank sends nothing more; any other is LOST.
void lose(Draft& draft, uint32_t rank);

// The gang hangs because of this rank. `of_node`: by no fault of the job.
void hang(Draft& draft, uint32_t rank, bool of_node, const std::string& message);

// Someone asks for the end. Nothing happens when it is ending for good already.
void cancel(Draft& draft);

// Follows the table in transitions.h until nothing moves. Afterwards a job that is not placed holds no device.
void settle(Draft& draft);

}  // namespace telar::server::jobs
