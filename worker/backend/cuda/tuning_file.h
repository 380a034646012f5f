// The algorithms that tuning chose, kept across processes: a restarted run then multiplies with the same kernels, and
// so to the same bits, and does not tune again.
//
// Text, a line a choice: "<machine> <product> <algorithm> <ms>ms", fields without blanks; the last line for a product
// counts. `machine` is the GPU's name with the library's version; the algorithm 128 hexadecimal digits, or "apart" for
// a product whose GELU is faster, or only right, as a kernel of its own. The time, what one call took when it was
// chosen, is for people and may be missing. Ranks may share a file: lines are appended whole.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace telar::backend::cuda {

class TuningFile {
 public:
  struct Choice {
    std::optional<cublasLtMatmulAlgo_t> algorithm;  // None: apart.
  };
  // Reads the lines of `machine`. INVALID_ARGUMENT: a line is malformed (path:line), or the file cannot be written.
  static absl::StatusOr<std::unique_ptr<TuningFile>> open(const std::string& path, const std::string& machine);
  std::optional<Choice> find(const std::string& product) const;
  // Later calls of find() see it even where it could not be written: a full disk costs tuning time, not the run.
  void add(const std::string& product, const Choice& choice, double ms);

 private:
  TuningFile(std::string path, std::string machine);
  absl::Status read();

  const std::string path_, machine_;
  std::map<std::string, Choice> choices_;
};

// What tuning found for one product. Milliseconds a call.
struct TuningResult {
  int candidates = 0;
  double first_ms = 0;        // Of the heuristic's first choice.
  double proposed_ms = 0;     // Of the best that the heuristic proposes.
  double best_ms = 0;         // Of the best candidate; for a product with GELU, of the best fused one.
  double apart_ms = 0;        // Of the product and the GELU apart; 0 without GELU.
  double gelu_deviation = 0;  // See launch_gelu_deviation(); 0 without GELU.
  bool is_apart = false;      // What was chosen.
  double multiply_adds = 0;
};
// Appends one line of tab-separated values to the file that TELAR_TUNING_LOG names, if it does, after a line of their
// names where the file is new.
void log_tuning(const std::string& product, const TuningResult& result);

}  // namespace telar::backend::cuda
