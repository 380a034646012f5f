// Between a replica and the run's checkpoints: what is saved, which one a start goes on from.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"
#include "worker/backend/collectives.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/weight_source.h"
#include "worker/train/replica.h"

namespace telar::train {

// Where a run stands; with the spec, all that a resume needs besides the tensors.
struct Position {
  uint64_t step = 0;
  uint64_t consumed_samples = 0;
  std::optional<double> eval_loss;                   // Of an evaluation behind this very step; finite.
  std::map<std::string, uint64_t> consumed_sources;  // As in checkpoint::Manifest.
  std::optional<checkpoint::BlendStart> blend_start;
  std::map<std::string, checkpoint::SourceExtent> sources;
};

// All errors are of class STORAGE, or CONFIG where the spec and a checkpoint do not fit.
class SavedState {
 public:
  // `committer` decides what may be published; it must outlive this.
  SavedState(const v1::RankPlan& plan, checkpoint::Committer& committer,
             checkpoint::FileSystem& files = checkpoint::FileSystem::posix())
      : plan_(plan), committer_(committer), files_(files) {}

  // The checkpoint that all ranks of the gang resume from; empty: none. Rank 0 publishes what an earlier epoch had
  // decided and not renamed, looks for the newest good one, saying which newer ones it skips and why, and tells the
  // others through `store` (null for a gang of one).
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
    std::vector<std::string> removed;  // By retention; rank 0 alone knows.
  };
  // The state of one step.
  struct Values {
    // Of a part of share(), kind by Replica::Kind. By `threads` threads at once.
    std::function<absl::Status(Replica::Kind, const parallel::Piece&, std::span<float>)> read;
    std::vector<float> step_state;  // As Replica::read_step_state().
    int threads = 1;                // That write.
  };
  // What of Replica::pieces() this rank writes: of what several ranks hold alike, its share.
  static std::vector<parallel::Piece> share(const plan::RunShape& shape);
  // Of a replica that does nothing else meanwhile.
  static absl::StatusOr<Values> values_of(const Replica& replica);
  // Called by all ranks of the gang alike; published when it returns on all of them, or an error on each. Every rank
  // writes its part, rank 0 has it decided, publishes and keeps what the spec says. `staged`, unless empty, is called
  // on rank 0 when all parts are durable and nothing is decided yet; `give_up`, unless null, ends it early. Any thread.
  absl::StatusOr<Saved> save(const plan::RunShape& shape, const Values& values, const Position& position,
                             const std::function<void()>& staged = nullptr,
                             const std::atomic<bool>* give_up = nullptr) const;
  absl::Status write_sample(const std::string& text) const;  // <run dir>/sample.txt

 private:
  absl::StatusOr<std::string> newest();
  absl::Status roll_forward() const;
  absl::Status add_state(const plan::RunShape& shape, const Values& values, checkpoint::CheckpointWriter& writer) const;
  absl::StatusOr<checkpoint::Manifest> describe(const Values& values, const Position& position) const;

  const v1::RankPlan& plan_;
  checkpoint::Committer& committer_;
  checkpoint::FileSystem& files_;
  std::vector<std::string> passed_over_;
};

}  // namespace telar::train
