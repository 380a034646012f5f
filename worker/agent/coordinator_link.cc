#include "worker/agent/coordinator_link.h"

#include <algorithm>

#include <google/protobuf/util/time_util.h>
#include <spdlog/spdlog.h>

#include "absl/strings/numbers.h"
#include "common/call_deadline.h"
#include "common/channel.h"
#include "common/errors.h"

namespace telar::agent {
namespace {

using google::protobuf::util::TimeUtil;
using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;
constexpr milliseconds kFirstPause{100}, kLongestPause{1'000};
constexpr milliseconds kLeastDeadline{1'000}, kMostDeadline{5'000};  // Of a registration.

template <typename Message>
bool same(const std::vector<Message>& a, const std::vector<Message>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Message& x, const Message& y) {
    return x.SerializeAsString() == y.SerializeAsString();  // No map in it: equal messages have equal bytes.
  });
}

// Without what changes all the time: that is told when the interval is over.
std::vector<v1::RankStatus> steady(std::vector<v1::RankStatus> ranks) {
  for (v1::RankStatus& one : ranks) one.clear_pace();
  return ranks;
}
std::vector<v1::DeviceHealth> steady(std::vector<v1::DeviceHealth> health) {
  for (v1::DeviceHealth& one : health) one.clear_used_bytes();
  return health;
}

}  // namespace

CoordinatorLink::CoordinatorLink(Line<v1::Cluster>* line, v1::RegisterNodeRequest self, metrics::DaemonMetrics* metrics,
                                 Told told)
    : line_(line), self_(std::move(self)), metrics_(metrics), told_(std::move(told)) {}

CoordinatorLink::~CoordinatorLink() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CoordinatorLink::start() {
  thread_ = std::thread([this] { run(); });
}

void CoordinatorLink::set_status(NodeStatus status) {
  const std::lock_guard lock(mutex_);
  const bool known = fresh_ && same(steady(status.ranks), steady(status_.ranks)) &&
                     same(status.receipts, status_.receipts) && same(steady(status.health), steady(status_.health)) &&
                     status.leave == status_.leave;
  status_ = std::move(status);
  if (known) return;
  changed_ = fresh_ = true;
  wake_.notify_all();
}

bool CoordinatorLink::wait_first_attempt(milliseconds longest) {
  std::unique_lock lock(mutex_);
  return wake_.wait_for(lock, longest, [this] { return attempted_; });
}

bool CoordinatorLink::wait_goodbye(milliseconds longest) {
  std::unique_lock lock(mutex_);
  return wake_.wait_for(lock, longest, [this] { return goodbye_; });
}

void CoordinatorLink::run() {
  milliseconds pause = kFirstPause;
  while (true) {
    const auto began = Steady::now();
    if (register_node()) {
      converse();
      metrics_->set_connected(false);
      if (Steady::now() - began > kLongestPause) pause = kFirstPause;  // A line that held for a while was a good one.
    }
    if (!wait_unless_stopping(pause)) return;
    pause = std::min(pause * 2, kLongestPause);
  }
}

bool CoordinatorLink::register_node() {
  grpc::ClientContext context;
  milliseconds longest;
  {
    // The first failure is reported at once. Later a call has to wait for the connection: between calls nobody polls,
    // and gRPC notices that the coordinator is back only every 5 s, which may take longer than the lease.
    const std::lock_guard lock(mutex_);
    context.set_wait_for_ready(attempted_);
    longest = std::clamp(silence_, kLeastDeadline, kMostDeadline);
  }
  const CallDeadline deadline(context, longest);
  set_call(&context);
  v1::RegisterNodeResponse response;
  const grpc::Status status = deadline.told(line_->stub()->RegisterNode(&context, self_, &response));
  set_call(nullptr);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) line_->renew();
  if (reason(from_grpc(status)) == "REVOKED") told_.on_revoked();
  const std::lock_guard lock(mutex_);
  if (status.ok()) {
    spdlog::info("registered as {} with {}", self_.node(), line_->address());
  } else {
    take_refusal(status);
  }
  attempted_ = true;
  wake_.notify_all();
  if (!status.ok()) return false;
  const milliseconds interval(TimeUtil::DurationToMilliseconds(response.heartbeat_interval()));
  const milliseconds lease(TimeUtil::DurationToMilliseconds(response.lease()));
  if (interval.count() > 0) interval_ = interval;
  silence_ = std::max(lease / 2, interval_ * 3 / 2);
  registration_ = response.registration();
  return true;
}

void CoordinatorLink::take_refusal(const grpc::Status& status) {
  if (!attempted_) {
    spdlog::warn("cannot register as {} with {}, trying again for ever: {}; {}", self_.node(), line_->address(),
                 status.error_message(), connection_advice(status.error_message(), tls_from_environment()));
  } else if (status.error_code() == grpc::StatusCode::ALREADY_EXISTS ||
             status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
             status.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
    spdlog::error("--node {}: {}", self_.node(), status.error_message());
  }
}

void CoordinatorLink::converse() {
  told_.on_registered();  // Before it counts what is said as fresh: a round of the loop may be under way.
  grpc::ClientContext context;
  {
    const std::lock_guard lock(mutex_);
    broken_ = changed_ = fresh_ = last_word_ = false;
    heard_ = Steady::now();
  }
  set_call(&context);
  const std::shared_ptr<v1::Cluster::Stub> stub = line_->stub();
  const std::unique_ptr<Stream> stream = stub->Heartbeat(&context);
  std::thread reader([&] { read(*stream, context); });
  v1::HeartbeatRequest message;
  while (next_message(message) && stream->Write(message)) {
  }
  if (!over_by_itself()) context.TryCancel();
  reader.join();
  const grpc::Status status = stream->Finish();
  set_call(nullptr);
  const std::lock_guard lock(mutex_);
  if (Steady::now() - heard_ > silence_) line_->renew();
  goodbye_ = last_word_ && status.ok();
  wake_.notify_all();
  if (!stopping_ && !goodbye_) {
    spdlog::warn("lost the coordinator {}, dialling again: {}", line_->address(), status.error_message());
  }
}

// Then its status is the coordinator's word, which a cancellation might be quicker than.
bool CoordinatorLink::over_by_itself() {
  const std::lock_guard lock(mutex_);
  return broken_ && last_word_;
}

bool CoordinatorLink::accept_term(const grpc::ClientContext& context) {
  const auto& headers = context.GetServerInitialMetadata();
  const auto found = headers.find(kTermHeader);
  uint64_t term = 0;
  if (found == headers.end() || !absl::SimpleAtoi(std::string(found->second.data(), found->second.size()), &term)) {
    return true;  // A coordinator that stands alone.
  }
  const std::lock_guard lock(mutex_);
  if (term < term_) {
    spdlog::warn("a coordinator that led before, in term {}, is not obeyed; term {} was heard", term, term_);
    return false;
  }
  term_ = term;
  return true;
}

void CoordinatorLink::read(Stream& stream, grpc::ClientContext& context) {
  v1::HeartbeatResponse response;
  while (stream.Read(&response)) {
    if (!accept_term(context)) {
      context.TryCancel();
      break;
    }
    metrics_->set_connected(true);
    metrics_->set_heartbeat_time(
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
    {
      const std::lock_guard lock(mutex_);
      heard_ = Steady::now();
    }
    told_.on_assignments(std::move(response));
    response = {};
  }
  const std::lock_guard lock(mutex_);
  broken_ = true;
  wake_.notify_all();
}

bool CoordinatorLink::next_message(v1::HeartbeatRequest& message) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, fresh_ ? interval_ : silence_, [this] { return changed_ || broken_ || stopping_; });
  if (!fresh_ || broken_ || stopping_ || Steady::now() - heard_ > silence_) return false;
  changed_ = false;
  last_word_ = status_.leave == v1::HeartbeatRequest::GONE;
  message.set_leave(status_.leave);
  message.set_node(self_.node());
  message.set_incarnation(self_.incarnation());
  message.set_sequence(++sequence_);
  message.set_registration(registration_);
  message.mutable_ranks()->Assign(status_.ranks.begin(), status_.ranks.end());
  message.mutable_health()->Assign(status_.health.begin(), status_.health.end());
  message.mutable_receipts()->Assign(status_.receipts.begin(), status_.receipts.end());
  return true;
}

bool CoordinatorLink::wait_unless_stopping(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, time, [this] { return stopping_ || goodbye_; });
}

void CoordinatorLink::set_call(grpc::ClientContext* context) {
  const std::lock_guard lock(mutex_);
  call_ = context;
  if (stopping_ && context != nullptr) context->TryCancel();
}

}  // namespace telar::agent
