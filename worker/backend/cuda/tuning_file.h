// The algorithms that tuning chose, kept across processes: a restarted run then multiplies with the same kernels, and
// so to the same bits, and does not tune again.
//
// Text, a line a choice: "<machine> <product> <algorithm as 128 hexadecimal digits>", fields without blanks; the last
// line for a product counts. `machine` is the GPU's name with the library's version. Ranks may share a file: lines are
// appended whole.
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
  // Reads the lines of `machine`. INVALID_ARGUMENT: a line is malformed (path:line), or the file cannot be written.
  static absl::StatusOr<std::unique_ptr<TuningFile>> open(const std::string& path, const std::string& machine);
  std::optional<cublasLtMatmulAlgo_t> find(const std::string& product) const;
  // Later calls of find() see it even where it could not be written: a full disk costs tuning time, not the run.
  void add(const std::string& product, const cublasLtMatmulAlgo_t& algorithm);

 private:
  TuningFile(std::string path, std::string machine);
  absl::Status read();

  const std::string path_, machine_;
  std::map<std::string, cublasLtMatmulAlgo_t> choices_;
};

}  // namespace telar::backend::cuda
