// One job on a page.
#pragma once

#include <cstdint>
#include <string>

#include "telar/v1/jobs.pb.h"

namespace telar::client {

// Everything about a job, for people: state and why, progress, results, placement, the whole spec.
std::string describe_page(const v1::Job& job, int64_t now_seconds);

// How a finished job ended and where what it made is: loss first -> last, eval loss, checkpoint, run directory, sample
// text, the command for its logs.
std::string summary(const v1::Job& job);

// Parts of such pages: "Name:        value", and which device each rank has.
std::string page_field(const std::string& name, const std::string& value);
std::string placement_table(const v1::Job& job);

}  // namespace telar::client
