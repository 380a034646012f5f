#include "client/commands/report.h"

#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/commands/exit_codes.h"
#include "client/output/format.h"
#include "common/errors.h"

namespace telar::client {
namespace {

constexpr const char* kSpecPrefix = "spec.";

// The place of a field, or of the nearest group above it that the file mentions.
const Place* find_place(const SpecReading& reading, std::string path) {
  while (!path.empty()) {
    const auto found = reading.places.find(path);
    if (found != reading.places.end()) return &found->second;
    const size_t cut = path.find_last_of(".[");
    path = cut == std::string::npos ? "" : path.substr(0, cut);
  }
  return nullptr;
}

std::string unreachable_line(const Context& context, const absl::Status& status) {
  return absl::StrCat("cannot reach the coordinator at ", context.options.coordinator, " (",
                      one_line(std::string(status.message())), "); ",
                      connection_advice(std::string(status.message()), context.options.tls));
}

}  // namespace

int exit_code(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kOk;
    case absl::StatusCode::kInvalidArgument:
      return kUsage;
    case absl::StatusCode::kNotFound:
      return kNotFound;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kUnreachable;
    default:
      return kRefused;
  }
}

int exit_code(v1::Job::State state) {
  if (state == v1::Job::SUCCEEDED) return kOk;
  return state == v1::Job::CANCELLED ? kCancelled : kJobFailed;
}

int report(Context& context, const absl::Status& status) { return report_spec(context, status, "", {}); }

int report_file(Context& context, const absl::Status& status) {
  const int code = report(context, status);
  return absl::IsDataLoss(status) ? kDamaged : code;
}

int report_spec(Context& context, const absl::Status& status, const std::string& file, const SpecReading& reading) {
  const std::vector<Violation> found = violations(status);
  for (const Violation& one : found) {
    std::string field = one.field;
    if (field.starts_with(kSpecPrefix)) field = field.substr(std::string(kSpecPrefix).size());
    const Place* place = find_place(reading, field);
    const Problem problem{file, place == nullptr ? Place{} : *place, one_line(field), one_line(one.description)};
    context.err() << "error: " << (file.empty() ? problem.field + ": " + problem.text : to_string(problem)) << "\n";
  }
  if (found.empty()) {
    const std::string line =
        exit_code(status) == kUnreachable ? unreachable_line(context, status) : one_line(std::string(status.message()));
    context.err() << "error: " << (line.empty() ? absl::StatusCodeToString(status.code()) : line) << "\n";
  }
  context.err() << std::flush;
  return exit_code(status);
}

int report_problems(Context& context, const std::vector<Problem>& problems) {
  for (const Problem& problem : problems) context.err() << "error: " << to_string(problem) << "\n";
  context.err() << std::flush;
  return kUsage;
}

}  // namespace telar::client
