// Reads a rank's events.jsonl: numbered lines, one RankEvent each, appended by the rank while we read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "telar/v1/rank.pb.h"

namespace telar::agent {

// A place in the file: the next line's number and its first byte.
struct EventCursor {
  uint64_t line = 0;
  uint64_t byte = 0;
};

// Complete lines from `cursor` on, at most about `most_bytes` of text (one line at least, whatever its size), and moves
// the cursor behind them. A last line without its newline is left. A line that is no event becomes an empty event, so
// that numbers stay right.
std::vector<v1::RankEvent> read_events(const std::string& path, EventCursor& cursor, size_t most_bytes);
// The cursor at `line`, or at the end if the file has fewer complete lines.
EventCursor find_line(const std::string& path, uint64_t line);

// What the events say about the end of the run, from the last lines of the file.
struct Outcome {
  bool finished = false;
  bool interrupted = false;
  bool failed = false;
  v1::RankFailure failure;  // When failed.
};
Outcome read_outcome(const std::string& path);

// The last line of a log that has a printable character, cut to 200 characters; empty when there is none.
std::string last_log_line(const std::string& path);

}  // namespace telar::agent
