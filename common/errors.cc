#include "common/errors.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace telar {
namespace {

// Details travel in a payload of the status under the URL of google.rpc.Status itself.
constexpr const char* kPayload = "type.googleapis.com/google.rpc.Status";
constexpr size_t kMostMessage = 2048;  // gRPC trailers are limited to 8 KiB in all.

absl::Status make(absl::StatusCode code, const std::string& message, const google::rpc::Status& details) {
  absl::Status status(code, message);
  status.SetPayload(kPayload, absl::Cord(details.SerializeAsString()));
  return status;
}

google::rpc::Status details_of(const absl::Status& status) {
  google::rpc::Status details;
  if (const auto payload = status.GetPayload(kPayload)) details.ParseFromString(std::string(*payload));
  return details;
}

}  // namespace

absl::Status invalid(const std::vector<Violation>& found) {
  google::rpc::Status details;
  google::rpc::BadRequest bad;
  std::string message;
  for (const Violation& violation : found) {
    auto* one = bad.add_field_violations();
    one->set_field(violation.field);
    one->set_description(violation.description);
    absl::StrAppend(&message, message.empty() ? "" : "; ", violation.field, ": ", violation.description);
  }
  google::rpc::ErrorInfo info;
  info.set_reason("INVALID_SPEC");
  info.set_domain(kErrorDomain);
  details.add_details()->PackFrom(info);
  details.add_details()->PackFrom(bad);
  return make(absl::StatusCode::kInvalidArgument, message, details);
}

absl::Status error(absl::StatusCode code, const std::string& why, const std::string& message) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  info.set_reason(why);
  info.set_domain(kErrorDomain);
  details.add_details()->PackFrom(info);
  return make(code, message, details);
}

std::vector<Violation> violations(const absl::Status& status) {
  std::vector<Violation> found;
  const google::rpc::Status details = details_of(status);
  for (const auto& any : details.details()) {
    google::rpc::BadRequest bad;
    if (!any.UnpackTo(&bad)) continue;
    for (const auto& one : bad.field_violations()) found.push_back({one.field(), one.description()});
  }
  return found;
}

std::string reason(const absl::Status& status) {
  const google::rpc::Status details = details_of(status);
  for (const auto& any : details.details()) {
    google::rpc::ErrorInfo info;
    if (any.UnpackTo(&info)) return info.reason();
  }
  return "";
}

grpc::Status to_grpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = std::string(status.message()).substr(0, kMostMessage);
  google::rpc::Status details = details_of(status);
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, details.SerializeAsString());
}

absl::Status from_grpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty()) result.SetPayload(kPayload, absl::Cord(status.error_details()));
  return result;
}

}  // namespace telar
