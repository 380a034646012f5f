#include "worker/backend/cuda/tuning_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/errors.h"

namespace telar::backend::cuda {
namespace {

constexpr size_t kDigits = 2 * sizeof(cublasLtMatmulAlgo_t);

bool is_hexadecimal(const std::string& text) { return text.find_first_not_of("0123456789abcdef") == std::string::npos; }

std::string without_blanks(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}

}  // namespace

TuningFile::TuningFile(std::string path, std::string machine)
    : path_(std::move(path)), machine_(without_blanks(std::move(machine))) {}

absl::StatusOr<std::unique_ptr<TuningFile>> TuningFile::open(const std::string& path, const std::string& machine) {
  std::unique_ptr<TuningFile> file(new TuningFile(path, machine));
  TELAR_RETURN_IF_ERROR(file->read());
  if (!std::ofstream(path, std::ios::app)) {
    return absl::InvalidArgumentError(absl::StrCat("TELAR_TUNING_FILE '", path, "': cannot be opened for writing"));
  }
  return file;
}

absl::Status TuningFile::read() {
  std::ifstream in(path_);  // Not there yet: no lines.
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::istringstream fields(line);
    std::string machine, product, digits, rest;
    fields >> machine >> product >> digits;
    if (digits.size() != kDigits || !is_hexadecimal(digits) || fields >> rest) {
      return absl::InvalidArgumentError(absl::StrCat("TELAR_TUNING_FILE ", path_, ":", number, ": got '",
                                                     line.substr(0, 80), "', wanted machine, product and ", kDigits,
                                                     " hexadecimal digits"));
    }
    if (machine != machine_) continue;
    const std::string bytes = absl::HexStringToBytes(digits);
    std::memcpy(&choices_[product], bytes.data(), sizeof(cublasLtMatmulAlgo_t));
  }
  return absl::OkStatus();
}

std::optional<cublasLtMatmulAlgo_t> TuningFile::find(const std::string& product) const {
  const auto found = choices_.find(product);
  if (found == choices_.end()) return std::nullopt;
  return found->second;
}

void TuningFile::add(const std::string& product, const cublasLtMatmulAlgo_t& algorithm) {
  choices_[product] = algorithm;
  const std::string bytes(reinterpret_cast<const char*>(&algorithm), sizeof(algorithm));
  const std::string line = absl::StrCat(machine_, " ", product, " ", absl::BytesToHexString(bytes), "\n");
  std::ofstream(path_, std::ios::app) << line << std::flush;
}

}  // namespace telar::backend::cuda
