// Checkpoints of a run in a table, one on a page, two side by side.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace telar::client {

struct CheckpointLine {
  std::string path;
  uint64_t step = 0;
  std::string state;  // "good", "damaged", "unfinished".
  std::string why;    // Of a damaged one.
  int64_t time = 0;   // Unix: when it was published, or last written to.
  uint64_t bytes = 0;
  bool pinned = false;
  // Of a good one.
  std::optional<double> eval_loss;
  std::string layout;  // "tp=2 pp=1 dp=4 zero=1"
  uint64_t epoch = 0;
};
// `wide` adds the paths.
std::string checkpoints_table(const std::vector<CheckpointLine>& lines, bool wide, bool header);
nlohmann::ordered_json checkpoint_json(const CheckpointLine& line);

struct TensorLine {
  std::string name, kind, dtype, shape;
  uint64_t bytes = 0;
  size_t chunks = 0;
  std::string tied_to;
};
struct CheckpointPage {
  CheckpointLine line;
  std::string job;
  uint64_t consumed_samples = 0, seed = 0;
  std::optional<uint64_t> applied_steps, skipped_steps;
  double loss_scale = 0;  // 0: none.
  size_t files = 0;
  std::vector<TensorLine> tensors;
  nlohmann::ordered_json spec;
};
// `wide` adds each tensor; else there is a line a kind.
std::string checkpoint_page(const CheckpointPage& page, bool wide);
nlohmann::ordered_json checkpoint_json(const CheckpointPage& page);

struct DifferenceLine {
  std::string name, kind;
  std::string difference;  // "none", "values", "dtype", "shape", "only in A", "only in B".
  std::string note;
  int64_t elements = 0, differing = 0;
  double max_absolute = 0, max_relative = 0;
};
struct FieldDifference {
  std::string path, a, b;  // JSON; "" where it is not there.
};
struct CheckpointDifference {
  std::string a, b;  // Paths.
  std::vector<DifferenceLine> tensors;
  std::vector<FieldDifference> fields;  // Of manifests ("step") and specs ("spec.batch.global").
  bool differs() const;
};
// Tensors that differ, all with `wide`; then fields; then a line that sums up.
std::string difference_page(const CheckpointDifference& difference, bool wide, bool header);
nlohmann::ordered_json difference_json(const CheckpointDifference& difference);

}  // namespace telar::client
