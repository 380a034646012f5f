// Figures as people read them.
#pragma once

#include <cstdint>
#include <string>

#include "google/protobuf/timestamp.pb.h"
#include "telar/v1/jobs.pb.h"

namespace telar::client {

std::string count(double value);       // "870", "12.3k", "1.24M"
std::string bytes(uint64_t value);     // "512 B", "1.5 GiB"
std::string duration(double seconds);  // "0.4s", "42s", "3m12s", "5h02m", "3d04h"
std::string loss(double value);        // "3.4512"; "-" for 0, which stands for "not yet"
// " (web 3.4512, code 2.9001)"; "" for none.
std::string source_losses(const google::protobuf::RepeatedPtrField<v1::SourceLoss>& sources);
std::string mfu(const v1::Progress& progress);  // "41.2%"; "n/a" when the device's peak is unknown

// Time from `then` to `now_seconds` (Unix) in one unit: "12s", "5m", "3h", "2d"; "-" when never.
std::string age(const google::protobuf::Timestamp& then, int64_t now_seconds);
std::string time_text(const google::protobuf::Timestamp& time);  // "2026-11-29T12:00:03Z"; "-" when never

std::string id_of(const std::string& name);  // "gpt2-x7k2" of "projects/default/jobs/gpt2-x7k2"
bool is_terminal(v1::Job::State state);      // SUCCEEDED, FAILED, CANCELLED
// Text from elsewhere in one line and without control characters, which could rewrite a terminal.
std::string one_line(const std::string& text);

}  // namespace telar::client
