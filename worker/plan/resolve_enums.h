// Enums of protobuf's take any number; ours do not.
#pragma once

#include <string>

#include "google/protobuf/message.h"
#include "worker/plan/problems.h"

namespace telar::plan {

// A problem for each field of `message` and of what is in it whose number has no name, as a client that is newer than
// this program, or none of ours, may send it. `message` is a JobSpec or a part of one; `path`: that of the message
// without "spec.", "" for a whole spec.
void check_enums(const google::protobuf::Message& message, const std::string& path, Problems& problems);

}  // namespace telar::plan
