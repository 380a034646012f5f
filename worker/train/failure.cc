#include "worker/train/failure.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace telar::train {
namespace {
constexpr const char* kPayload = "telar.dev/failure_class";
}  // namespace

absl::Status with_class(v1::FailureClass failure_class, absl::Status status) {
  if (!status.ok() && !status.GetPayload(kPayload)) {
    status.SetPayload(kPayload, absl::Cord(v1::FailureClass_Name(failure_class)));
  }
  return status;
}

absl::Status with_prefix(const std::string& prefix, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status longer(status.code(), absl::StrCat(prefix, status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { longer.SetPayload(url, payload); });
  return longer;
}

v1::FailureClass class_of(const absl::Status& status) {
  if (const auto payload = status.GetPayload(kPayload)) {
    v1::FailureClass parsed = v1::INTERNAL;
    v1::FailureClass_Parse(std::string(*payload), &parsed);
    return parsed;
  }
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return v1::OUT_OF_MEMORY;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return v1::COMMUNICATION;
    default:
      return v1::INTERNAL;
  }
}

}  // namespace telar::train
