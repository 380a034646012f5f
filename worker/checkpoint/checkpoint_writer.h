// Saves a checkpoint and publishes it by one rename. Format and protocol: docs/formats/checkpoint.md.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/dtype.h"
#include "worker/checkpoint/board.h"
#include "worker/checkpoint/commit.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/retention.h"
#include "worker/checkpoint/safetensors.h"

namespace telar::checkpoint {

// A logical tensor, or a box of one that is added in several parts.
struct TensorPart {
  std::string name;
  TensorKind kind = TensorKind::kWeight;
  backend::DType dtype = backend::DType::kF32;
  std::vector<int64_t> shape;       // Of the whole tensor.
  std::span<const std::byte> data;  // Row-major; must stay as it is until publish() returns. Empty: `read` gives it.
  std::vector<int64_t> offset;      // Of the box in each axis; offset and extent empty: the whole tensor.
  std::vector<int64_t> extent;
  // Fills `out` with the bytes of the row-major box from `first_byte` on, which is a multiple of the element. Called
  // from publish(), front to back, a few MiB at a time: so the state need not be on the host a second time. With
  // several writers (Writing) by several threads.
  std::function<absl::Status(uint64_t first_byte, std::span<std::byte> out)> read = nullptr;
};

// The ranks that save together, each what it holds.
struct Peers {
  int rank = 0;
  int count = 1;
  // How long rank 0 waits, once it has written its own part, for those of the others. They wait twice as long for it.
  std::chrono::milliseconds patience = std::chrono::minutes(10);
};

// How publish() goes about it.
struct Writing {
  int threads = 1;  // That write shards, each its own; with several a shard may be smaller than it need be.
  // Who decides, once all is durable, whether it may be published; rank 0's. Null: nobody is asked.
  Committer* committer = nullptr;
  // Turns true when nobody wants the checkpoint any more: publish() then fails soon, unless it is decided already.
  const std::atomic<bool>* give_up = nullptr;
};

struct PublishResult {
  std::string path;                  // The published directory.
  uint64_t bytes = 0;                // Of its files.
  bool already_there = false;        // A good checkpoint of this step stood there and was left as it is.
  std::vector<std::string> removed;  // Old checkpoints that retention took away.
  std::vector<absl::Status>
      warnings;  // What went wrong without harm: the LATEST hint, retention, sweeping. To be logged.
};

// The error of a save of which the other ranks could not be told: they wait for this one until their patience is over,
// unless it ends.
bool untold(const absl::Status& status);
// The error of a save that this attempt may not publish, nor any later one of its: a greater attempt is there, or
// whoever decides has refused it.
bool fenced(const absl::Status& status);

// One save of one step. Not for several threads. A writer that is destroyed unpublished takes its files away.
//
// `attempt` is the allocation epoch. Attempts fence each other: a writer refuses (FAILED_PRECONDITION) when a greater
// attempt has published or is saving in this run, and takes away what lesser ones left unfinished.
//
// Several ranks, on one shared file system, call create(), add() and publish() alike, each with the parts that it
// holds. Rank 0 publishes when all have written theirs; when one fails, nobody does, and all get an error, rank 0 one
// that names the rank. Nothing of this step and attempt may be left from an earlier life or failure: see sweep().
class CheckpointWriter {
 public:
  static constexpr uint64_t kShardBytes = uint64_t{4} << 30;

  // Makes <run_dir>/ckpt when it is missing, sweeps it, and makes the directory that the save goes to; other ranks wait
  // until rank 0 has. `files` must outlive the writer. A shard is closed before it would pass `shard_bytes`; a larger
  // part has one of its own.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> create(FileSystem& files, const std::string& run_dir,
                                                                  uint64_t step, uint64_t attempt,
                                                                  uint64_t shard_bytes = kShardBytes, Peers peers = {},
                                                                  Writing writing = {});
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The tensors that the checkpoint shall have, all of them and no others; their chunks are ignored. Before any add().
  // Without it, the tensors that are added. Rank 0's count.
  void expect(std::vector<TensorEntry> tensors);
  // INVALID_ARGUMENT names the tensor: data of another size than dtype and shape say, parts that do not agree.
  absl::Status add(TensorPart part);
  // `name` shares the elements of `tied_to`, which was added whole or in part before.
  absl::Status add_tied(const std::string& name, TensorKind kind, const std::string& tied_to);

  // Writes and syncs all files, verifies that every element is there once, has it decided, publishes, points LATEST at
  // it, and keeps what `rule` says of the run's complete checkpoints (retention.h). Of `info` job, consumed_samples,
  // consumed_sources, blend_start, sources, seed, optimizer, eval_loss, spec_json and layout are taken, rank 0's; the
  // rest is the writer's. Call it once. On an error, which names the path, earlier checkpoints are as they were, and
  // this one is not visible (or, when only the last sync of the directory or the word to the other ranks failed,
  // visible and whole; or, when it may have been decided by a committer that remembers, left for roll_forward()). Other
  // ranks than 0 learn path and bytes only, and return when it is published, not when retention is done.
  absl::StatusOr<PublishResult> publish(Manifest info, const RetentionRule& rule);

 private:
  CheckpointWriter(FileSystem& files, std::string run_dir, uint64_t step, uint64_t attempt, uint64_t shard_bytes,
                   Peers peers, Writing writing);
  // A file of shards, planned before any is written.
  struct Shard {
    std::string name;
    std::vector<size_t> parts;
    std::vector<TensorInfo> tensors;  // By part.
    std::vector<size_t> chunks;       // By part: its place among the chunks of its tensor.
    FileEntry written;
  };
  bool leads() const { return peers_.rank == 0; }
  bool alone() const { return peers_.count == 1; }
  absl::Status begin();        // Rank 0.
  absl::Status await_begin();  // The others.
  absl::Status fence() const;
  absl::Status check_wanted() const;  // CANCELLED once it is given up.
  std::vector<Shard> plan_shards();
  Shard plan_shard(size_t number, std::span<const size_t> parts);
  absl::Status write_shards();
  absl::Status write_shard(Shard& shard);
  absl::Status write_part(const TensorPart& part, class SafetensorsWriter& shard, Chunk& chunk);
  absl::Status write_and_commit();   // Rank 0.
  absl::Status write_and_hand_in();  // The others.
  absl::Status gather();
  absl::Status take_fragment(int rank);
  absl::Status verdict();
  absl::Status tell(const absl::Status& status);
  absl::Status tell_failure(absl::Status status);
  void close_board();
  absl::Status commit();
  absl::Status decide();

  FileSystem& files_;
  const std::string run_dir_, parent_, temp_, target_;
  const uint64_t step_, attempt_, shard_bytes_;
  const Peers peers_;
  const Writing writing_;
  Board board_;  // Unused when alone.
  std::vector<TensorPart> parts_;
  std::vector<size_t> part_tensor_;  // Index in manifest_.tensors of each part.
  bool closed_ = false;              // expect() has said which tensors there are.
  Manifest manifest_;                // This rank's fragment; in rank 0's end, the whole.
  PublishResult result_;
  bool temp_exists_ = false;  // And is this rank's to take away.
  bool awaited_ = false;      // Others wait for this rank's word.
  bool published_ = false;    // Or tried to.
};

}  // namespace telar::checkpoint
