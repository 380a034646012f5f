#include "common/errors.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace telar {
namespace {

// Details travel in a payload of the status under the URL of google.rpc.Status itself.
constexpr const char* kPayload = "type.googleapis.com/google.rpc.Status";
// gRPC limits trailers to 8 KiB in all: the message once in text, and once in the details, which travel in base64.
constexpr size_t kMostMessage = 1024;
constexpr size_t kMostViolations = 3072;

absl::Status make(absl::StatusCode code, const std::string& message, const google::rpc::Status& details) {
  absl::Status status(code, well_formed(message));
  status.SetPayload(kPayload, absl::Cord(details.SerializeAsString()));
  return status;
}

google::rpc::Status details_of(const absl::Status& status) {
  google::rpc::Status details;
  if (const auto payload = status.GetPayload(kPayload)) details.ParseFromString(std::string(*payload));
  return details;
}

// As many violations as fit, and one that counts the rest.
google::rpc::BadRequest shorten(const google::rpc::BadRequest& all) {
  google::rpc::BadRequest kept;
  size_t size = 0;
  for (const auto& one : all.field_violations()) {
    size += one.ByteSizeLong() + 4;  // With its tag and length.
    if (size > kMostViolations) break;
    *kept.add_field_violations() = one;
  }
  if (const int rest = all.field_violations_size() - kept.field_violations_size(); rest > 0) {
    auto* last = kept.add_field_violations();
    last->set_field("...");
    last->set_description(absl::StrCat("and ", rest, " more"));
  }
  return kept;
}

}  // namespace

absl::Status invalid(const std::vector<Violation>& found) {
  google::rpc::Status details;
  google::rpc::BadRequest bad;
  std::string message;
  for (const Violation& violation : found) {
    auto* one = bad.add_field_violations();
    one->set_field(well_formed(violation.field));
    one->set_description(well_formed(violation.description));
    absl::StrAppend(&message, message.empty() ? "" : "; ", violation.field, ": ", violation.description);
  }
  google::rpc::ErrorInfo info;
  info.set_reason("INVALID_SPEC");
  info.set_domain(kErrorDomain);
  details.add_details()->PackFrom(info);
  details.add_details()->PackFrom(bad);
  return make(absl::StatusCode::kInvalidArgument, message, details);
}

absl::Status error(absl::StatusCode code, const std::string& why, const std::string& message,
                   const std::map<std::string, std::string>& variables) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  info.set_reason(why);
  info.set_domain(kErrorDomain);
  for (const auto& [name, value] : variables) (*info.mutable_metadata())[name] = well_formed(value);
  details.add_details()->PackFrom(info);
  return make(code, message, details);
}

absl::Status exhausted(const std::string& why, const std::string& message, std::chrono::milliseconds retry) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  info.set_reason(why);
  info.set_domain(kErrorDomain);
  details.add_details()->PackFrom(info);
  google::rpc::RetryInfo again;
  again.mutable_retry_delay()->set_seconds(retry.count() / 1000);
  again.mutable_retry_delay()->set_nanos(static_cast<int>(retry.count() % 1000) * 1'000'000);
  details.add_details()->PackFrom(again);
  return make(absl::StatusCode::kResourceExhausted, message, details);
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

std::map<std::string, std::string> metadata(const absl::Status& status) {
  const google::rpc::Status details = details_of(status);
  for (const auto& any : details.details()) {
    google::rpc::ErrorInfo info;
    if (any.UnpackTo(&info)) return {info.metadata().begin(), info.metadata().end()};
  }
  return {};
}

std::optional<std::chrono::milliseconds> retry_delay(const absl::Status& status) {
  const google::rpc::Status details = details_of(status);
  for (const auto& any : details.details()) {
    google::rpc::RetryInfo again;
    if (!any.UnpackTo(&again)) continue;
    const google::protobuf::Duration& delay = again.retry_delay();
    return std::chrono::milliseconds(delay.seconds() * 1000 + delay.nanos() / 1'000'000);
  }
  return std::nullopt;
}

grpc::Status to_grpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = well_formed(std::string(status.message()), kMostMessage);
  google::rpc::Status details = details_of(status);
  for (auto& any : *details.mutable_details()) {
    google::rpc::BadRequest bad;
    if (any.UnpackTo(&bad)) any.PackFrom(shorten(bad));
  }
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
