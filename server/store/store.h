// What the coordinator must not forget, behind one interface: jobs, their events, small settings, and the answers it
// gave.
//
// The store knows nothing of jobs but their ids: values are blobs that the layer above serializes. Safe to call from
// any thread; commits of several threads share a write to the disk. Every error names the database.
//   RESOURCE_EXHAUSTED   the disk is full, or the batch is larger than the database takes
//   PERMISSION_DENIED    the file or its folder cannot be written
//   UNAVAILABLE          another process holds it, or nobody answers
//   DATA_LOSS            not a database, or damaged
//   FAILED_PRECONDITION  written by a newer version of the program; or, from commit(), this process leads no more
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace telar::server::store {

struct JobRow {
  std::string id;
  std::string blob;
};

struct EventRow {
  uint64_t sequence = 0;  // Grows within the job; the caller numbers.
  uint64_t step = 0;      // The optimizer step that it reports; 0 for every other kind of event.
  std::string blob;
};

// How many events of one rank in one epoch were taken over.
struct StreamRow {
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint64_t next_line = 0;
};

struct AnswerRow {
  std::string request;  // Method and request_id.
  std::string blob;
};

// What an operator decided, or what was found out, that belongs to no job: "node/a", "quarantine/a/GPU/3".
struct SettingRow {
  std::string key;
  std::optional<std::string> blob;  // Absent: erased.
};

// Everything that changes together: commit() makes all of it durable, or nothing.
struct Batch {
  // Inserted or replaced; a batch concerns at most one job. Without one there are no events and no stream.
  std::optional<JobRow> job;
  std::vector<EventRow> events;
  std::vector<uint64_t> erase_events;   // Sequences.
  std::optional<uint64_t> step_stride;  // Erases the step events whose step is no multiple of it, before `events`.
  std::optional<StreamRow> stream;
  std::optional<AnswerRow> answer;
  std::vector<SettingRow> settings;
};

class Store {
 public:
  virtual ~Store() = default;
  // Durable, when it returns OK, against a crash of the process and of the machine. Batches about one job must come
  // one after the other.
  virtual absl::Status commit(const Batch& batch) = 0;
  // All of them together, or nothing: the tasks of an array.
  virtual absl::Status commit_all(const std::vector<Batch>& batches) = 0;
  virtual absl::StatusOr<std::vector<JobRow>> jobs() = 0;
  // In order of sequence, those after `after`, at most `limit`.
  virtual absl::StatusOr<std::vector<EventRow>> events(const std::string& job, uint64_t after, int limit) = 0;
  virtual absl::StatusOr<uint64_t> next_line(const std::string& job, uint64_t epoch, uint32_t rank) = 0;
  // In order of key, those whose key begins with `prefix`.
  virtual absl::StatusOr<std::vector<SettingRow>> settings(const std::string& prefix) = 0;
  virtual absl::StatusOr<std::optional<std::string>> answer(const std::string& request) = 0;
};

struct SqliteOptions {
  std::string path;                                  // ":memory:" for one that ends with the process.
  std::function<void(double seconds)> on_commit;     // Told how long each commit took; may be empty.
  std::function<void()> on_transaction;              // Called after each write to the disk; may be empty.
  std::function<void(const char* point)> failpoint;  // Tests only: called at "begin", "written", "committed".
};

// Opens or creates the database. One process at a time: a lock file beside it says so.
absl::StatusOr<std::unique_ptr<Store>> open_sqlite(SqliteOptions options);

}  // namespace telar::server::store
