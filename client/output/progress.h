// A running job in one line, and its history as lines.
#pragma once

#include <string>

#include "telar/v1/jobs.pb.h"

namespace telar::client {

// "RUNNING  120/1000  loss 3.4512  tokens/s 12.3k  MFU n/a  ETA 3m12s"; before the first step the state and why.
std::string progress_line(const v1::Job& job);

// "RUNNING -> RESTARTING: rank 1 exited with 137 (epoch 2)", "checkpoint at step 100: path", ...; "" for events that
// are not worth a line (steps, which progress_line shows, and a start that passed no checkpoint over).
std::string event_line(const v1::JobEvent& event);

}  // namespace telar::client
