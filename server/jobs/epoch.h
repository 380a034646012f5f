// One allocation epoch of a job, from its placement until its last process is gone. Pure: each function changes a
// draft, by what was seen or asked; settle() then moves the state machine as far as it goes.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "server/cluster/inventory.h"
#include "server/jobs/draft.h"
#include "telar/v1/cluster.pb.h"

namespace telar::server::jobs {

// QUEUED -> STARTING with the next epoch; slot r is rank r's.
void begin_epoch(Draft& draft, const std::vector<cluster::Slot>& slots);

// The worker tells of a rank of this epoch. A process that dies of our own STOP is no failure: by SIGTERM, or by
// SIGKILL once `grace_over`, or with its state saved once its worker was `told_to_stop` (before, someone else asked).
void observe(Draft& draft, const v1::RankStatus& status, bool told_to_stop, bool grace_over);

// The worker does not have the rank. One that it was told to run may be on its way for as long as the worker does not
// say that it will not start it: no silence proves that. `gone`: it will not, as it ends.
void observe_absence(Draft& draft, uint32_t rank, bool gone);

// The lease of the rank's node ran out. An exited rank sends nothing more; any other is LOST.
void lose(Draft& draft, uint32_t rank);

// The gang hangs because of this rank. `of_node`: by no fault of the job.
void hang(Draft& draft, uint32_t rank, bool of_node, const std::string& message);
// The rank's device failed: so does the rank, whatever its process does.
void fail_device(Draft& draft, uint32_t rank, const std::string& message);

// The ranks are to save and leave for `reason`, which is nobody's fault: the job is queued again and pays nothing.
// Nothing happens unless it is STARTING or RUNNING.
void interrupt(Draft& draft, const std::string& reason);

// It ran for as long as it may: it saves, and ends as FAILED. A job in the queue fails at once.
void end_at_time_limit(Draft& draft);

// Someone asks for the end. Nothing happens when it is ending for good already.
void cancel(Draft& draft);

// Follows the table in transitions.h until nothing moves. Afterwards a job that is not placed holds no device.
void settle(Draft& draft);

}  // namespace telar::server::jobs
