#include "server/auth/guard.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"
#include "common/tls.h"

namespace telar::server::auth {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr std::chrono::seconds kLook(1);
constexpr const char* kBearer = "Bearer ";
constexpr const char* kNodeUri = "telar://node/";

absl::Status unauthenticated(const std::string& why, const std::string& message) {
  return error(absl::StatusCode::kUnauthenticated, why, message);
}
absl::Status denied(const std::string& why, const std::string& message) {
  return error(absl::StatusCode::kPermissionDenied, why, message);
}

// A string field of the request by name; empty without one.
std::string text_of(const Message* request, const char* name) {
  if (request == nullptr) return "";
  const FieldDescriptor* field = request->GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->is_repeated() || field->type() != FieldDescriptor::TYPE_STRING) return "";
  return request->GetReflection()->GetString(*request, field);
}

// Of what ranks ask; each of those requests has one.
uint64_t epoch_of(const Message& request) {
  const FieldDescriptor* field = request.GetDescriptor()->FindFieldByName("epoch");
  return field == nullptr ? 0 : request.GetReflection()->GetUInt64(request, field);
}

// Jobs that a spec is to wait for.
const google::protobuf::RepeatedPtrField<v1::Dependency>* dependencies_of(const Message& request) {
  if (const auto* one = dynamic_cast<const v1::CreateJobRequest*>(&request)) {
    return &one->spec().scheduling().after();
  }
  if (const auto* many = dynamic_cast<const v1::CreateJobArrayRequest*>(&request)) {
    return &many->spec().scheduling().after();
  }
  return nullptr;
}

bool has_field(const Message& request, const char* name) {
  return request.GetDescriptor()->FindFieldByName(name) != nullptr;
}

// The job that a request of a person is about.
std::string job_of(const Message* request) {
  if (const auto* update = dynamic_cast<const v1::UpdateJobRequest*>(request)) return update->job().name();
  return text_of(request, "name");
}

std::string resource_of(const Message* request) {
  const std::string job = job_of(request);
  for (const std::string& name : {job, text_of(request, "job"), text_of(request, "node"), text_of(request, "parent")}) {
    if (!name.empty()) return name;
  }
  return "";
}

// The project of a request; empty: it names none, or not as it should, which the method itself will refuse.
std::string project_of(const Message& request) {
  const bool by_parent = has_field(request, "parent");
  std::string name = by_parent ? text_of(&request, "parent") : job_of(&request);
  const bool lists = request.GetDescriptor() == v1::ListJobsRequest::descriptor();
  if (by_parent && name.empty() && !lists) name = "projects/default";
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  const bool right = parts.size() >= 2 && parts[0] == "projects" &&
                     (by_parent ? parts.size() == 2 : parts.size() == 4 && parts[2] == "jobs");
  return right ? parts[1] : "";
}

absl::Status lacks_role(const Caller& caller, Role role, const std::string& where, const std::string& method) {
  return denied("ROLE_REQUIRED",
                absl::StrCat("user ", caller.name, " needs the role ", role_name(role), " ", where, " for ", method));
}

}  // namespace

Guard::Guard(GuardOptions options, const Clock* clock, FindJob find_job)
    : options_(std::move(options)),
      clock_(clock),
      find_job_(std::move(find_job)),
      rate_(options_.calls_a_second, options_.burst, clock),
      streams_(options_.streams) {}

absl::StatusOr<std::unique_ptr<Guard>> Guard::open(const GuardOptions& options, const Clock* clock, FindJob find_job) {
  std::unique_ptr<Guard> guard(new Guard(options, clock, std::move(find_job)));
  if (!options.audit.path.empty()) {
    auto audit = AuditLog::open(options.audit, clock);
    if (!audit.ok()) return audit.status();
    guard->audit_ = *std::move(audit);
  }
  const auto follow = [&guard](const std::string& path, auto parse, auto member) {
    if (path.empty()) return;
    Guard* self = guard.get();
    guard->files_.push_back(std::make_unique<WatchedFile>(path, [self, parse, member](const std::string& text) {
      auto read = parse(text);
      if (!read.ok()) return read.status();
      std::lock_guard<std::mutex> hold(self->mutex_);
      self->*member = *std::move(read);
      return absl::OkStatus();
    }));
  };
  follow(options.tokens, &Tokens::parse, &Guard::tokens_);
  follow(options.revoked, &Revoked::parse, &Guard::revoked_);
  for (const auto& file : guard->files_) {
    if (absl::Status status = file->load(); !status.ok()) return status;
  }
  guard->thread_ = std::thread([self = guard.get()] { self->watch(); });
  return guard;
}

Guard::~Guard() {
  {
    std::lock_guard<std::mutex> hold(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Guard::watch() {
  std::unique_lock<std::mutex> hold(mutex_);
  while (!wake_.wait_for(hold, kLook, [this] { return stopping_; })) {
    hold.unlock();
    refresh();
    hold.lock();
  }
}

void Guard::refresh() {
  std::lock_guard<std::mutex> one_at_a_time(refresh_mutex_);
  for (const auto& file : files_) {
    if (absl::Status status = file->refresh(); !status.ok()) {
      ++reload_failures_;
      spdlog::error("{}; what it said before stays in force", std::string(status.message()));
    }
  }
  end_streams();
  if (audit_) audit_->flush();
}

// Under the lock, so that no stream is gone meanwhile.
void Guard::end_streams() {
  std::lock_guard<std::mutex> hold(mutex_);
  for (const auto& [visit, stream] : open_streams_) {
    if (!tokens_.holds(stream.token, clock_->wall())) stream.end();
  }
}

absl::StatusOr<Caller> Guard::authenticate(const Peer& peer, const Access& access) const {
  if (!authenticates()) return Caller();
  return access.scope == Scope::kNode ? node(peer) : person(peer);
}

absl::StatusOr<Caller> Guard::person(const Peer& peer) const {
  if (peer.authorization.empty()) {
    return unauthenticated("NO_TOKEN", "a token is needed; set TELAR_TOKEN or TELAR_TOKEN_FILE");
  }
  if (!peer.authorization.starts_with(kBearer)) {
    return unauthenticated("NO_TOKEN", "authorization must be 'Bearer <token>'");
  }
  std::lock_guard<std::mutex> hold(mutex_);
  return tokens_.find(peer.authorization.substr(std::string(kBearer).size()), clock_->wall());
}

absl::StatusOr<Caller> Guard::node(const Peer& peer) const {
  if (peer.certificate.empty()) {
    return unauthenticated("NO_CERTIFICATE", "a node's certificate is needed; give --tls-cert and --tls-key");
  }
  Caller caller;
  caller.kind = Caller::Kind::kNode;
  for (const std::string& uri : peer.uris) {
    if (uri.starts_with(kNodeUri)) caller.name = uri.substr(std::string(kNodeUri).size());
  }
  if (caller.name.empty()) {
    return denied("NOT_A_NODE", absl::StrCat("the certificate is of no node: it has no SAN URI:", kNodeUri, "NAME"));
  }
  std::lock_guard<std::mutex> hold(mutex_);
  if (options_.revoked.empty()) return caller;
  const auto facts = parse_certificate(peer.certificate);
  if (!facts.ok()) return denied("NOT_A_NODE", "the certificate cannot be read");
  caller.fingerprint = facts->fingerprint;
  return caller;
}

absl::Status Guard::check_node(const Caller& caller, const std::string& node) const {
  if (caller.kind == Caller::Kind::kAnyone) return absl::OkStatus();
  {
    std::lock_guard<std::mutex> hold(mutex_);
    if (revoked_.contains(caller.name, caller.fingerprint)) {
      return denied("REVOKED", absl::StrCat("node ", caller.name, " or its certificate is revoked"));
    }
  }
  if (node == caller.name) return absl::OkStatus();
  return denied("WRONG_NODE",
                absl::StrCat("the certificate is of node ", caller.name, ", which cannot speak for '", node, "'"));
}

absl::Status Guard::authorize(const Caller& caller, const Access& access, const Message* request) const {
  if (caller.kind == Caller::Kind::kAnyone) return absl::OkStatus();
  if (access.scope == Scope::kNode) {
    const bool itself = request == nullptr || !has_field(*request, "node");
    if (absl::Status status = check_node(caller, itself ? caller.name : text_of(request, "node")); !status.ok()) {
      return status;
    }
    return request != nullptr && itself ? check_placed(caller, *request) : absl::OkStatus();
  }
  if (access.scope == Scope::kCluster) {
    const bool has = caller.role_in(kEveryProject) >= access.role;
    return has ? absl::OkStatus() : lacks_role(caller, access.role, "in every project (*)", access.method);
  }
  const std::string project = access.scope == Scope::kAnyProject ? "" : project_of(*request);
  if (project.empty()) {
    const bool has = caller.highest() >= access.role;
    return has ? absl::OkStatus() : lacks_role(caller, access.role, "in some project", access.method);
  }
  if (caller.role_in(project) < access.role) {
    return lacks_role(caller, access.role, absl::StrCat("in project ", project), access.method);
  }
  const bool others = access.scope == Scope::kOwnJob && caller.role_in(project) < Role::kOperator;
  return others ? check_own(caller, job_of(request)) : check_dependencies(caller, access, *request);
}

// What a job waits for tells of other jobs: whoever names one must be allowed to see it.
absl::Status Guard::check_dependencies(const Caller& caller, const Access& access, const Message& request) const {
  const auto* after = dependencies_of(request);
  if (after == nullptr) return absl::OkStatus();
  for (const v1::Dependency& one : *after) {
    const std::vector<std::string> parts = absl::StrSplit(one.job(), '/');
    if (parts.size() < 2 || caller.role_in(parts[1]) >= Role::kViewer) continue;  // A bare id is of the same project.
    return lacks_role(caller, Role::kViewer, absl::StrCat("in project ", parts[1], ", of scheduling.after,"),
                      access.method);
  }
  return absl::OkStatus();
}

absl::Status Guard::check_own(const Caller& caller, const std::string& name) const {
  const auto job = find_job_(name);
  if (!job.ok() || job->owner() == caller.name) return absl::OkStatus();  // The method says that there is none.
  return denied("NOT_THE_OWNER", absl::StrCat("job '", name, "' is ", job->owner().empty() ? "nobody" : job->owner(),
                                              "'s; for others' jobs user ", caller.name, " needs the role operator"));
}

// What a rank asks for its job: its node must have a rank of it. Of a job that is not there or nowhere, or of another
// epoch than the job's, the method itself says so, and gives nothing away.
absl::Status Guard::check_placed(const Caller& caller, const Message& request) const {
  const std::string name = text_of(&request, "job");
  const auto job = find_job_(name);
  if (!job.ok() || job->placement().empty() || job->epoch() != epoch_of(request)) return absl::OkStatus();
  const bool here = std::any_of(job->placement().begin(), job->placement().end(),
                                [&](const v1::RankPlacement& place) { return place.node() == caller.name; });
  if (here) return absl::OkStatus();
  return denied("WRONG_NODE", absl::StrCat("node ", caller.name, " has no rank of job '", name, "'"));
}

void Guard::count_refusal(const std::string& reason) {
  std::lock_guard<std::mutex> hold(mutex_);
  ++refused_[reason];
}

Guard::Figures Guard::figures() const {
  std::lock_guard<std::mutex> hold(mutex_);
  return {refused_, audit_ ? audit_->lost() : 0, reload_failures_};
}

Visit::Visit(Guard* guard, const Peer& peer, const std::string& method, const Message* request,
             std::function<void()> end_stream)
    : guard_(guard), access_(access_of(method)) {
  entry_.peer = peer.address;
  entry_.method = method;
  entry_.resource = resource_of(request);
  entry_.request_id = text_of(request, "request_id");
  status_ = admit(peer, request, std::move(end_stream));
}

absl::Status Visit::admit(const Peer& peer, const Message* request, std::function<void()> end_stream) {
  if (access_ == nullptr) return denied("NO_RULE", absl::StrCat("nobody may call ", entry_.method));
  auto caller = guard_->authenticate(peer, *access_);
  if (!caller.ok()) return caller.status();
  caller_ = *std::move(caller);
  known_ = true;
  const bool person = caller_.kind == Caller::Kind::kPerson;
  if (person) {
    if (absl::Status status = guard_->rate_.take(caller_.name); !status.ok()) return status;
  }
  if (absl::Status status = guard_->authorize(caller_, *access_, request); !status.ok()) return status;
  if (request != nullptr && request->ByteSizeLong() > access_->most_bytes) {
    return invalid({{"request", absl::StrCat(request->ByteSizeLong(), " bytes; at most ", access_->most_bytes)}});
  }
  if (request != nullptr && access_->scope != Scope::kNode) {
    if (const auto found = find_oversize(*request); !found.empty()) return invalid(found);
  }
  if (!person || !end_stream) return absl::OkStatus();
  if (absl::Status status = guard_->streams_.open(caller_.name); !status.ok()) return status;
  stream_ = true;
  std::lock_guard<std::mutex> hold(guard_->mutex_);
  guard_->open_streams_[this] = {caller_.fingerprint, std::move(end_stream)};
  return absl::OkStatus();
}

Visit::~Visit() {
  if (!stream_) return;
  guard_->streams_.close(caller_.name);
  std::lock_guard<std::mutex> hold(guard_->mutex_);
  guard_->open_streams_.erase(this);
}

void Visit::end(const absl::Status& answer) {
  const bool refused = absl::IsUnauthenticated(answer) || absl::IsPermissionDenied(answer);
  if (refused) entry_.reason = reason(answer);
  if (!answer.ok() && (refused || !status_.ok())) guard_->count_refusal(reason(answer));
  const bool changes = access_ != nullptr && access_->changes;
  if (guard_->audit_ == nullptr || !(changes || refused)) return;
  entry_.caller = known_ ? &caller_ : nullptr;
  entry_.code = absl::StatusCodeToString(answer.code());
  guard_->audit_->write(entry_);
}

}  // namespace telar::server::auth
