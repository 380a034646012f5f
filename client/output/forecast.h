// What `telar plan` says, for people.
#pragma once

#include <string>

#include "telar/v1/forecast.pb.h"

namespace telar::client {

// One layout: its degrees, memory by class and rank, where a step's time goes, how long the run takes, and advice.
// `wide` has every pipeline rank; else the first, the fullest and the last.
std::string forecast_page(const v1::Forecast& forecast, const std::string& hardware, bool wide, bool header);

// The best layouts of a search, why each is there, and what was dropped.
std::string search_page(const v1::LayoutSearch& search, const std::string& hardware, bool header);

// "tp 8 pp 16 dp 128, zero 1, micro 1, interleaved x 2, recompute full"
std::string layout_line(const v1::JobSpec& spec);

}  // namespace telar::client
