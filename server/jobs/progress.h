// What rank 0 tells becomes Job.progress.
#pragma once

#include "server/jobs/record.pb.h"

namespace telar::server::jobs {

inline constexpr const char* kHostMemory = "host";  // The one MemoryUse.memory_class that is not the device's.

// Progress of a job that has not begun.
void begin_progress(JobRecord& record);
// Folds one event of rank 0 in. The step goes back when a restart resumes from a checkpoint; first_loss stays.
void fold_event(JobRecord& record, const v1::RankEvent& event);
// What any rank of the current epoch tells of its memory.
void fold_memory(JobRecord& record, uint32_t rank, const v1::RankEvent& event);

}  // namespace telar::server::jobs
