#include "worker/backend/cuda/tuning_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
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

constexpr const char* kApart = "apart";

// "0.1234ms"
bool is_time(const std::string& text) {
  return text.size() > 2 && text.find_first_not_of("0123456789.") == text.size() - 2 &&
         text.compare(text.size() - 2, 2, "ms") == 0;
}

bool is_choice(const std::string& text) { return text == kApart || (text.size() == kDigits && is_hexadecimal(text)); }

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
    std::string machine, product, choice, time, rest;
    fields >> machine >> product >> choice >> time >> rest;
    if (!is_choice(choice) || !(time.empty() || is_time(time)) || !rest.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("TELAR_TUNING_FILE ", path_, ":", number, ": got '",
                                                     line.substr(0, 80), "', wanted machine, product, ", kDigits,
                                                     " hexadecimal digits or '", kApart, "', and milliseconds"));
    }
    if (machine != machine_) continue;
    Choice& kept = choices_[product] = Choice();
    if (choice == kApart) continue;
    const std::string bytes = absl::HexStringToBytes(choice);
    std::memcpy(&kept.algorithm.emplace(), bytes.data(), sizeof(cublasLtMatmulAlgo_t));
  }
  return absl::OkStatus();
}

std::optional<TuningFile::Choice> TuningFile::find(const std::string& product) const {
  const auto found = choices_.find(product);
  if (found == choices_.end()) return std::nullopt;
  return found->second;
}

void TuningFile::add(const std::string& product, const Choice& choice, double ms) {
  choices_[product] = choice;
  std::string text = kApart;
  if (choice.algorithm.has_value()) {
    const std::string bytes(reinterpret_cast<const char*>(&*choice.algorithm), sizeof(*choice.algorithm));
    text = absl::BytesToHexString(bytes);
  }
  char time[32] = "";
  if (std::isfinite(ms)) std::snprintf(time, sizeof(time), " %.4fms", ms);
  const std::string line = absl::StrCat(machine_, " ", product, " ", text, time, "\n");
  std::ofstream(path_, std::ios::app) << line << std::flush;
}

void log_tuning(const std::string& product, const TuningResult& result) {
  const char* path = std::getenv("TELAR_TUNING_LOG");
  if (path == nullptr || *path == '\0') return;
  std::ofstream out(path, std::ios::app);
  out.seekp(0, std::ios::end);
  std::string text;
  if (out.tellp() == std::ofstream::pos_type(0)) {
    text = "product\tcandidates\tfirst_ms\tproposed_ms\tbest_ms\tapart_ms\tgelu_deviation\tchosen\tTFLOP/s\n";
  }
  const double chosen_ms = result.is_apart ? result.apart_ms : result.best_ms;
  char values[256];
  std::snprintf(values, sizeof(values), "\t%d\t%.4f\t%.4f\t%.4f\t%.4f\t%.3f\t%s\t%.1f\n", result.candidates,
                result.first_ms, result.proposed_ms, result.best_ms, result.apart_ms, result.gelu_deviation,
                result.is_apart ? "apart" : "product", 2e-9 * result.multiply_adds / chosen_ms);
  out << text << product << values << std::flush;
}

}  // namespace telar::backend::cuda
