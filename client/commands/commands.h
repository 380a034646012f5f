// The subcommands. Each prints results on out and trouble on err, and returns the exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/commands/context.h"

namespace telar::client {

struct SubmitOptions {
  std::string file;      // "-": standard input.
  bool dry_run = false;  // Prints the complete spec on stdout; where it would run, or why not, on stderr.
  bool watch = false;
  bool wait = false;
  std::string name;               // Replaces spec.name.
  std::vector<std::string> sets;  // "path=value", applied after the file in this order.
  std::optional<Milliseconds> wait_timeout;
  std::string request_id = {};  // Empty: a new one.
};
// Prints the new job's id on the first line of stdout; of an array those of its tasks, one a line.
int submit(Context& context, const SubmitOptions& options);

struct PlanOptions {
  std::string file;               // "-": standard input.
  std::vector<std::string> sets;  // As SubmitOptions.
  std::string cluster;            // File with a ClusterShape; the options below override it.
  uint32_t nodes = 0;             // 0: as many as the job wants.
  uint32_t devices_per_node = 0;  // 0: 8.
  std::string gpu;                // Of forecast::built_in_rates(); empty: h200, or cpu.
};
// What a job would need and how long it would take; of `parallel: auto` the best layouts. Asks no coordinator.
// kRefused: it does not fit.
int plan(Context& context, const PlanOptions& options);

struct ListOptions {
  std::vector<std::string> states;  // In any case; empty: all.
};
int list(Context& context, const ListOptions& options);

int describe(Context& context, const std::string& job);

struct WatchOptions {
  std::string job;  // Empty: all that live, as a table that is drawn again and again.
  std::optional<Milliseconds> wait_timeout;
};
int watch(Context& context, const WatchOptions& options);

struct LogsOptions {
  std::string job;
  bool follow = false;
  uint32_t rank = 0;
  uint64_t epoch = 0;   // 0: from the first one on.
  uint64_t offset = 0;  // Into the first epoch that is read.
};
// Writes the log's bytes to stdout as they are.
int logs(Context& context, const LogsOptions& options);

struct CancelOptions {
  std::string job;
  bool array = false;  // And every other task of its array.
  bool wait = false;
  std::optional<Milliseconds> wait_timeout;
  std::string etag = {};  // As UpdateOptions.etag.
};
// Of an array those that are not over, in the end the running ones: so none starts in the place of another.
// With wait: kOk once the job is CANCELLED, kRefused when it ended otherwise first.
int cancel(Context& context, const CancelOptions& options);

struct TraceOptions {
  std::vector<std::string> of;  // A job; or files of ranks, or folders that hold them at any depth.
  std::string step;             // A number, or of a job "next". Empty: the only one there is.
  uint32_t steps = 1;           // So many in a row.
  std::string to;               // Where the joined trace goes. Empty: of a job trace-<id>-<step>.json, else nowhere.
  std::optional<Milliseconds> wait_timeout;
};
// Whether these are files of this machine, rather than a job.
bool names_files(const std::vector<std::string>& of);
// Of files asks no coordinator. Of a job has its ranks trace the step, unless it is there already, waits for them, and
// fetches what they wrote; the first Ctrl-C leaves, kOk.
int trace(Context& context, const TraceOptions& options);

struct CkptConvertOptions {
  std::string from;
  std::string to;            // Must not be there.
  std::string to_format;     // hf, llmc or telar; empty: hf of a checkpoint of ours, else telar.
  std::string dtype;         // f32, bf16 or f16; empty: as the weights are stored or the run computed.
  uint64_t shard_bytes = 0;  // 0: 5 GB.
  std::string tokenizer;     // A tokenizer.json to be copied along.
  bool print_model = false;  // Only print the model, as the part of a spec.
};
// Of files on this machine; asks no coordinator.
int ckpt_convert(Context& context, const CkptConvertOptions& options);

struct UpdateOptions {
  std::string job;
  std::string etag;  // Of the job that was looked at; empty: change it whatever it is now.
  std::optional<std::string> queue;
  std::optional<int32_t> priority;
  std::optional<bool> preemptible;
  std::optional<Milliseconds> time_limit;  // Zero: none.
};
int update(Context& context, const UpdateOptions& options);

int nodes(Context& context);
struct ReleaseOptions {
  std::string node;
  std::string device;  // "gpu:3"
};
// Gives a device back that is in quarantine; prints its node.
int release_device(Context& context, const ReleaseOptions& options);
struct NodeOptions {
  std::string node;
  std::string reason;
};
int cordon_node(Context& context, const NodeOptions& options);
int uncordon_node(Context& context, const NodeOptions& options);
int drain_node(Context& context, const NodeOptions& options);
int queues(Context& context);
int version(Context& context, bool client_only);
// Whether `subject` is the path of a field of the spec, right or misspelt: then no coordinator is needed.
bool names_field(const std::string& subject);
// A field of the spec, by its path; else a job: why it waits.
int explain(Context& context, const std::string& subject);

}  // namespace telar::client
