// Where each second of a job's life went. Pure, of the record; by its Timeline, as processes go on while no
// coordinator looks.
#pragma once

#include "common/clock.h"
#include "server/jobs/record.pb.h"

namespace telar::server::jobs {

// The job leaves its state: what it spent there since the last call, or since it was made, goes where it belongs.
void settle_state(JobRecord& record, Clock::Wall now);
// A rank tells that its epoch begins behind `start_step`: steps beyond it that an earlier epoch did were for nothing.
// Before the record's progress takes the event up; once an epoch, whichever rank is first.
void note_start(JobRecord& record, uint64_t start_step);
// Training stood still so long for a save.
void note_stall(JobRecord& record, double seconds);

// With all ranks running: what was productive, lost and stalled.
double run_seconds(const v1::Goodput& goodput);
// As of now: the parts sum to the job's age, or to its life if it is over.
v1::Goodput goodput_of(const JobRecord& record, Clock::Wall now);

}  // namespace telar::server::jobs
