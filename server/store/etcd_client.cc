#include "server/store/etcd_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/call_deadline.h"
#include "etcd/rpc.grpc.pb.h"

namespace telar::server::store {
namespace {

namespace pb = etcdserverpb;
using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kMostOfOneTry(1'000);  // Then another address is asked.
constexpr milliseconds kRetryPause(50);
constexpr int64_t kKeysAtOnce = 500;

std::shared_ptr<grpc::Channel> dial_etcd(const std::string& endpoint,
                                         const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // A new channel is a new connection.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3'000);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(endpoint, credentials, arguments);
}

CallDeadline prepare(grpc::ClientContext& context, EtcdClient::Steady until) {
  // Else the call is over at once while there is no connection, and only a thread that waits in a call drives one on.
  context.set_wait_for_ready(true);
  const auto left = std::clamp<SteadyClock::duration>(until - SteadyClock::now(), milliseconds(1), kMostOfOneTry);
  return CallDeadline(context, left);
}

// The token is refused, not the call.
bool token_refused(const grpc::Status& status) {
  const std::string& text = status.error_message();
  return text.find("invalid auth token") != std::string::npos ||
         text.find("revision of auth store is old") != std::string::npos;
}

absl::StatusOr<std::string> read_password(const std::string& path) {
  std::ifstream file(path);
  std::string password;
  if (!std::getline(file, password) || password.empty()) {
    return absl::PermissionDeniedError(absl::StrCat("--etcd-password-file: ", path, " has no password in it"));
  }
  return password;
}

// etcd refused for good: the same request would be refused again, and has had no effect.
bool definite(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::UNIMPLEMENTED:
      return true;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:  // Full; but not when it is only busy.
      return status.error_message().find("too many requests") == std::string::npos;
    default:
      return false;
  }
}

}  // namespace

struct EtcdClient::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : auth(pb::Auth::NewStub(channel)), kv(pb::KV::NewStub(channel)), lease(pb::Lease::NewStub(channel)) {}
  const std::unique_ptr<pb::Auth::Stub> auth;
  const std::unique_ptr<pb::KV::Stub> kv;
  const std::unique_ptr<pb::Lease::Stub> lease;
};

// One address, and the connection to it.
class EtcdClient::Member {
 public:
  Member(std::string endpoint, std::shared_ptr<grpc::ChannelCredentials> credentials)
      : endpoint_(std::move(endpoint)), credentials_(std::move(credentials)) {
    renew();
  }
  std::shared_ptr<Stubs> stubs() const {  // For one call.
    const std::lock_guard lock(mutex_);
    return stubs_;
  }
  // Behind a call that ended so. gRPC's own pause before it dials again may be an hour longer: common/call_deadline.h.
  void renew_unless_answered(const grpc::Status& status) {
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
      renew();  // Which is when it waits to be ready, too.
  }

 private:
  void renew() {
    auto stubs = std::make_shared<Stubs>(dial_etcd(endpoint_, credentials_));
    const std::lock_guard lock(mutex_);
    stubs_.swap(stubs);
  }

  const std::string endpoint_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  mutable std::mutex mutex_;
  std::shared_ptr<Stubs> stubs_;  // Guarded by mutex_.
};

absl::StatusOr<std::vector<std::string>> etcd_endpoints(const std::string& url) {
  constexpr const char* kScheme = "etcd://";
  const std::string wanted = absl::StrCat("'", url, "' is not etcd://HOST:PORT[,HOST:PORT...]");
  if (url.rfind(kScheme, 0) != 0) return absl::InvalidArgumentError(wanted);
  const std::vector<std::string> endpoints = absl::StrSplit(url.substr(7), ',');
  for (const std::string& endpoint : endpoints) {
    const size_t colon = endpoint.rfind(':');
    int port = 0;
    const bool right = colon != std::string::npos && colon > 0 && absl::SimpleAtoi(endpoint.substr(colon + 1), &port) &&
                       port > 0 && port <= 65535;
    if (!right) return absl::InvalidArgumentError(absl::StrCat(wanted, ": '", endpoint, "'"));
  }
  return endpoints;
}

std::string end_of_prefix(std::string prefix) {
  prefix.back() = static_cast<char>(prefix.back() + 1);  // Ours are text, which never ends in the largest byte.
  return prefix;
}

EtcdClient::EtcdClient(std::vector<std::string> endpoints, EtcdAccess access)
    : access_(std::move(access)), name_(absl::StrCat("etcd://", absl::StrJoin(endpoints, ","))) {
  const auto credentials = access_.tls.any() ? channel_credentials(access_.tls) : grpc::InsecureChannelCredentials();
  for (const std::string& endpoint : endpoints) {
    members_.push_back(std::make_unique<Member>(endpoint, credentials));
  }
}

EtcdClient::~EtcdClient() = default;

absl::StatusOr<std::string> EtcdClient::token(Member& member, Steady until) {
  if (access_.user.empty()) return "";
  {
    const std::lock_guard lock(mutex_);
    if (!token_.empty()) return token_;
  }
  const auto password = read_password(access_.password_file);
  if (!password.ok()) return password.status();
  pb::AuthenticateRequest request;
  request.set_name(access_.user);
  request.set_password(*password);
  grpc::ClientContext context;
  const CallDeadline deadline = prepare(context, until);
  pb::AuthenticateResponse response;
  const grpc::Status status = deadline.told(member.stubs()->auth->Authenticate(&context, request, &response));
  member.renew_unless_answered(status);
  if (!status.ok()) return told(status, absl::StrCat("log in as --etcd-user ", access_.user));
  const std::lock_guard lock(mutex_);
  return token_ = response.token();
}

void EtcdClient::drop_token(const std::string& refused) {
  const std::lock_guard lock(mutex_);
  if (token_ == refused) token_.clear();  // Else another thread has a newer one by now.
}

absl::Status EtcdClient::told(const grpc::Status& status, const std::string& doing) const {
  const std::string text = absl::StrCat("store ", name_, ": cannot ", doing, ": ", status.error_message());
  if (definite(status)) return absl::Status(static_cast<absl::StatusCode>(status.error_code()), text);
  return absl::UnavailableError(text);
}

template <typename Response, typename Call>
absl::StatusOr<Response> EtcdClient::ask(Member& member, Steady until, const char* doing, Call call) {
  for (bool again = false;; again = true) {
    const auto token = this->token(member, until);
    if (!token.ok()) return token.status();
    grpc::ClientContext context;
    const CallDeadline deadline = prepare(context, until);
    if (!token->empty()) context.AddMetadata("token", *token);
    Response response;
    const grpc::Status status = deadline.told(call(*member.stubs(), &context, &response));
    if (status.ok()) return response;
    member.renew_unless_answered(status);
    if (token->empty() || again || !token_refused(status)) return told(status, doing);
    drop_token(*token);
  }
}

template <typename Response, typename Call>
absl::StatusOr<Response> EtcdClient::attempt(Steady until, const char* doing, Call call) {
  const size_t index = current_.load();
  auto response = ask<Response>(*members_[index % members_.size()], until, doing, call);
  size_t expected = index;
  if (absl::IsUnavailable(response.status())) current_.compare_exchange_strong(expected, index + 1);
  return response;
}

template <typename Response, typename Call>
absl::StatusOr<Response> EtcdClient::retry(Steady until, const char* doing, Call call) {
  while (true) {
    auto response = attempt<Response>(until, doing, call);
    if (!absl::IsUnavailable(response.status()) || SteadyClock::now() + kRetryPause >= until) return response;
    std::this_thread::sleep_for(kRetryPause);
  }
}

absl::StatusOr<pb::RangeResponse> EtcdClient::range(const pb::RangeRequest& request, Steady until) {
  return retry<pb::RangeResponse>(
      until, "read", [&](Stubs& stubs, auto* context, auto* out) { return stubs.kv->Range(context, request, out); });
}

absl::StatusOr<pb::TxnResponse> EtcdClient::txn(const pb::TxnRequest& request, Steady until) {
  return retry<pb::TxnResponse>(
      until, "write", [&](Stubs& stubs, auto* context, auto* out) { return stubs.kv->Txn(context, request, out); });
}

absl::StatusOr<pb::TxnResponse> EtcdClient::try_txn(const pb::TxnRequest& request, Steady until) {
  return attempt<pb::TxnResponse>(
      until, "write", [&](Stubs& stubs, auto* context, auto* out) { return stubs.kv->Txn(context, request, out); });
}

absl::StatusOr<pb::LeaseGrantResponse> EtcdClient::grant(std::chrono::seconds ttl, Steady until) {
  pb::LeaseGrantRequest request;
  request.set_ttl(ttl.count());
  return retry<pb::LeaseGrantResponse>(until, "get a lease", [&](Stubs& stubs, auto* context, auto* out) {
    return stubs.lease->LeaseGrant(context, request, out);
  });
}

absl::Status EtcdClient::revoke(int64_t lease, Steady until) {
  pb::LeaseRevokeRequest request;
  request.set_id(lease);
  return attempt<pb::LeaseRevokeResponse>(
             until, "give a lease back",
             [&](Stubs& stubs, auto* context, auto* out) { return stubs.lease->LeaseRevoke(context, request, out); })
      .status();
}

absl::Status EtcdClient::compact(int64_t revision) {
  pb::CompactionRequest request;
  request.set_revision(revision);
  return attempt<pb::CompactionResponse>(
             SteadyClock::now() + kMostOfOneTry, "compact",
             [&](Stubs& stubs, auto* context, auto* out) { return stubs.kv->Compact(context, request, out); })
      .status();
}

absl::StatusOr<std::chrono::seconds> EtcdClient::try_keep_alive(int64_t lease, Steady until) {
  pb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  auto response = attempt<pb::LeaseKeepAliveResponse>(
      until, "renew a lease", [&](Stubs& stubs, grpc::ClientContext* context, auto* out) {
        auto stream = stubs.lease->LeaseKeepAlive(context);
        const bool answered = stream->Write(request) && stream->WritesDone() && stream->Read(out);
        if (answered) {
          context->TryCancel();  // The rest of the stream is of no interest.
          stream->Finish();
          return grpc::Status::OK;
        }
        const grpc::Status status = stream->Finish();
        return status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "no answer") : status;
      });
  if (!response.ok()) return response.status();
  return std::chrono::seconds(response->ttl());
}

absl::StatusOr<std::vector<pb::KeyValue>> EtcdClient::all(const std::string& prefix, std::chrono::seconds patience) {
  std::vector<pb::KeyValue> found;
  pb::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(end_of_prefix(prefix));
  request.set_limit(kKeysAtOnce);
  while (true) {
    auto page = range(request, SteadyClock::now() + patience);
    if (!page.ok()) return page.status();
    for (pb::KeyValue& one : *page->mutable_kvs()) found.push_back(std::move(one));
    if (!page->more()) return found;
    request.set_revision(page->header().revision());
    request.set_key(found.back().key() + '\0');
  }
}

}  // namespace telar::server::store
