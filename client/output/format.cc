#include "client/output/format.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/util/time_util.h"

namespace telar::client {

std::string count(double value) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (std::fabs(value) >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0) return absl::StrFormat("%.0f", value);
  return absl::StrFormat("%.3g%s", value, kUnits[unit]);
}

std::string bytes(uint64_t value) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double scaled = static_cast<double>(value);
  size_t unit = 0;
  while (scaled >= 1024 && unit + 1 < std::size(kUnits)) {
    scaled /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%d B", value) : absl::StrFormat("%.1f %s", scaled, kUnits[unit]);
}

std::string duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "-";
  if (seconds < 9.95) return absl::StrFormat("%.1fs", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return absl::StrFormat("%ds", whole);
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh%02dm", whole / 3600, whole / 60 % 60);
  return absl::StrFormat("%dd%02dh", whole / 86400, whole / 3600 % 24);
}

std::string loss(double value) { return value == 0 ? "-" : absl::StrFormat("%.4f", value); }

std::string source_losses(const google::protobuf::RepeatedPtrField<v1::SourceLoss>& sources) {
  std::string text;
  for (const v1::SourceLoss& source : sources) {
    absl::StrAppend(&text, text.empty() ? " (" : ", ", one_line(source.name()), " ", loss(source.loss()));
  }
  return text.empty() ? "" : text + ")";
}

std::string mfu(const v1::Progress& progress) {
  return progress.mfu() > 0 ? absl::StrFormat("%.1f%%", 100 * progress.mfu()) : "n/a";
}

std::string age(const google::protobuf::Timestamp& then, int64_t now_seconds) {
  if (then.seconds() == 0) return "-";
  const int64_t passed = std::max<int64_t>(0, now_seconds - then.seconds());
  if (passed < 60) return absl::StrFormat("%ds", passed);
  if (passed < 3600) return absl::StrFormat("%dm", passed / 60);
  if (passed < 86400) return absl::StrFormat("%dh", passed / 3600);
  return absl::StrFormat("%dd", passed / 86400);
}

std::string time_text(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0 && time.nanos() == 0) return "-";
  google::protobuf::Timestamp whole;
  whole.set_seconds(time.seconds());
  return google::protobuf::util::TimeUtil::ToString(whole);
}

std::string id_of(const std::string& name) {
  const size_t slash = name.rfind('/');
  return slash == std::string::npos ? name : name.substr(slash + 1);
}

bool is_terminal(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte == 0x7f ? ' ' : c;
  }
  return line;
}

}  // namespace telar::client
