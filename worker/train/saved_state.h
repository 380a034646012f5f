// Between a replica and the run's checkpoints: what is saved, which one a start goes on from.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"
#include "worker/backend/collectives.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/weight_source.h"
#include "worker/train/replica.h"

namespace telar::train {

// Where a run stands; with the spec, all that a resume needs besides the tensors.
struct Position {
  uint64_t step = 0;
  uint64_t consumed_samples = 0;
  std::optional<double> eval_loss;  // Of an evaluation behind this very step; finite.
};

// All errors are of class STORAGE, or CONFIG where the spec and a checkpoint do not fit.
class SavedState {
 public:
  explicit SavedState(const v1::RankPlan& plan, checkpoint::FileSystem& files = checkpoint::FileSystem::posix())
      : plan_(plan), files_(files) {}

  // The checkpoint that all ranks of the gang resume from; empty: none. Rank 0 looks for the newest good one, saying
  // which newer ones it skips and why, and tells the others through `store` (null for a gang of one).
  absl::StatusOr<std::string> choose(backend::KeyValueStore* store);
  // What choose() skipped, newest first, each with the reason; rank 0's.
  const std::vector<std::string>& passed_over() const { return passed_over_; }
  // That the checkpoint has all that a resume needs, in the shapes of the spec's model. Names the first tensor that it
  // lacks or has otherwise. To be asked before the model takes memory.
  absl::Status check_state(const std::string& path) const;
  // Masters and moments from the checkpoint, of whatever layout: this rank's pieces, verified by their CRCs.
  absl::StatusOr<Position> restore(const std::string& path, Replica& replica) const;
  // Weights to start from: another run's checkpoint, or a model of any format that convert::open_model knows. All but
  // the tensors' bytes is checked, and that it is a model as the spec's.
  absl::StatusOr<std::unique_ptr<checkpoint::WeightSource>> open_weights(const std::string& path) const;
  // This rank's pieces of them.
  absl::Status load_weights(const checkpoint::WeightSource& weights, Replica& replica) const;

  struct Saved {
    std::string path;
    uint64_t bytes = 0;
    std::vector<std::string> removed;  // By retention.
  };
  // Called by all ranks of the gang alike; published when it returns on all of them, or an error on each. Every rank
  // writes its part, rank 0 publishes and keeps what the spec says.
  absl::StatusOr<Saved> save(const Replica& replica, const Position& position) const;
  absl::Status write_sample(const std::string& text) const;  // <run dir>/sample.txt

 private:
  absl::StatusOr<std::string> newest();
  absl::Status add_state(const Replica& replica, checkpoint::CheckpointWriter& writer) const;
  absl::StatusOr<checkpoint::Manifest> describe(const Replica& replica, const Position& position) const;

  const v1::RankPlan& plan_;
  checkpoint::FileSystem& files_;
  std::vector<std::string> passed_over_;
};

}  // namespace telar::train
