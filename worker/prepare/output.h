// The directory that a preparation writes into: shards one by one, and how far it is.
#pragma once

#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/prepared.h"
#include "worker/data/shard_writer.h"
#include "worker/prepare/prepare.h"
#include "worker/prepare/work_state.h"

namespace telar::prepare {

// For one thread. Holds a lock on the directory that ends with the process.
class Output {
 public:
  // Makes the directory, or takes it up where an earlier run of the same request left it. Errors of prepare().
  static absl::StatusOr<std::unique_ptr<Output>> open(const Options& options, nlohmann::ordered_json request,
                                                      data::TokenizerRecord tokenizer);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  const WorkState& state() const { return state_; }
  // All add to the state; `after` is where reading goes on.
  absl::Status add_document(std::span<const int32_t> ids, uint64_t text_bytes, Position after);
  void add_empty(Position after);
  absl::Status add_skipped(const std::string& line, Position after);
  // Publishes what is left, and dataset.json; the directory is finished then.
  absl::Status finish();

 private:
  Output(const Options& options, data::TokenizerRecord tokenizer, int lock);
  absl::Status take_up(nlohmann::ordered_json request);
  absl::Status copy_tokenizer();
  absl::Status close_shard();
  absl::Status open_skipped();

  const Options& options_;
  const std::string directory_;
  data::TokenizerRecord tokenizer_;
  const int lock_;
  WorkState state_;
  std::unique_ptr<data::ShardWriter> shard_;
  uint64_t shard_tokens_ = 0;
  uint64_t shard_documents_ = 0;
  std::FILE* skipped_ = nullptr;
};

}  // namespace telar::prepare
