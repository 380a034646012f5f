#include "server/store/leadership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace telar::server::store {
namespace {

namespace pb = etcdserverpb;
using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kOneTry(1'000);
constexpr milliseconds kRenewPause(100);  // After a call that failed.

}  // namespace

Leadership::Leadership(EtcdClient* client, LeadershipOptions options)
    : client_(client), options_(std::move(options)), key_(options_.prefix + "leader") {}

Leadership::~Leadership() { resign(); }

absl::StatusOr<bool> Leadership::campaign() {
  pb::RangeRequest look;
  look.set_key(key_);
  auto now = client_->range(look, SteadyClock::now() + kOneTry);
  if (!now.ok()) return now.status();
  if (now->kvs_size() > 0) {
    std::lock_guard<std::mutex> hold(mutex_);
    leader_ = now->kvs(0).value();
    return false;
  }
  const auto asked = SteadyClock::now();
  auto lease = client_->grant(options_.ttl, asked + kOneTry);
  if (!lease.ok()) return lease.status();

  pb::TxnRequest take;
  pb::Compare* free = take.add_compare();
  free->set_target(pb::Compare::VERSION);
  free->set_key(key_);
  free->set_version(0);
  pb::PutRequest* put = take.add_success()->mutable_request_put();
  put->set_key(key_);
  put->set_value(options_.address);
  put->set_lease(lease->id());
  const auto won = client_->try_txn(take, SteadyClock::now() + kOneTry);
  if (!won.ok() || !won->succeeded()) {
    // Without an answer the key may be ours: it goes with its lease.
    client_->revoke(lease->id(), SteadyClock::now() + kOneTry).IgnoreError();
    if (!won.ok()) return won.status();
    return false;
  }
  std::lock_guard<std::mutex> hold(mutex_);
  leader_ = options_.address;
  lease_ = lease->id();
  term_ = won->header().revision();
  version_ = 1;
  end_ = asked + std::chrono::seconds(lease->ttl());
  held_ = true;
  thread_ = std::thread([this] { keep(); });
  return true;
}

// Renews three times in a lease. Each renewal counts from when it was asked for, so that etcd cannot end it earlier.
void Leadership::keep() {
  milliseconds pause = milliseconds(options_.ttl) / 3;
  while (wait(pause)) {
    const auto asked = SteadyClock::now();
    if (asked >= end()) return lose("its lease ran out before it was renewed");
    const auto left = client_->try_keep_alive(lease_, std::min(end(), asked + kOneTry));
    pause = left.ok() ? milliseconds(options_.ttl) / 3 : kRenewPause;
    if (!left.ok()) continue;
    if (left->count() == 0) return lose("etcd has ended its lease");
    std::lock_guard<std::mutex> hold(mutex_);
    end_ = asked + *left;
  }
}

bool Leadership::wait(milliseconds time) {
  std::unique_lock<std::mutex> hold(mutex_);
  changed_.wait_for(hold, time, [this] { return !held_; });
  return held_;
}

void Leadership::lose(const std::string& why) {
  {
    std::lock_guard<std::mutex> hold(mutex_);
    if (!held_) return;
    held_ = false;
    changed_.notify_all();
  }
  if (options_.on_lost) options_.on_lost(why);
}

void Leadership::resign() {
  int64_t lease = 0;
  {
    std::lock_guard<std::mutex> hold(mutex_);
    if (held_) lease = lease_;
    held_ = false;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (lease != 0) client_->revoke(lease, SteadyClock::now() + kOneTry).IgnoreError();
}

std::string Leadership::leader() const {
  std::lock_guard<std::mutex> hold(mutex_);
  return leader_;
}

bool Leadership::holds() const {
  std::lock_guard<std::mutex> hold(mutex_);
  return held_ && SteadyClock::now() < end_;
}

EtcdClient::Steady Leadership::end() const {
  std::lock_guard<std::mutex> hold(mutex_);
  return end_;
}

int64_t Leadership::term() const {
  std::lock_guard<std::mutex> hold(mutex_);
  return term_;
}

Fence Leadership::fence() const {
  std::lock_guard<std::mutex> hold(mutex_);
  pb::Compare version;
  version.set_target(pb::Compare::VERSION);
  version.set_key(key_);
  version.set_version(version_);
  return {version_, {born_in(term_), version}};
}

pb::Compare Leadership::born_in(int64_t term) const {
  pb::Compare compare;
  compare.set_target(pb::Compare::CREATE);
  compare.set_key(key_);
  compare.set_create_revision(term);
  return compare;
}

absl::Status Leadership::renew_fence(int64_t version) {
  pb::TxnRequest request;
  {
    std::lock_guard<std::mutex> hold(mutex_);
    *request.add_compare() = born_in(term_);
    pb::PutRequest* put = request.add_success()->mutable_request_put();
    put->set_key(key_);
    put->set_value(options_.address);
    put->set_lease(lease_);
    request.add_success()->mutable_request_range()->set_key(key_);
    request.add_failure()->mutable_request_range()->set_key(key_);
  }
  while (holds()) {
    if (fence().version != version) return absl::OkStatus();
    const auto response = client_->try_txn(request, end());
    if (!response.ok() && !absl::IsUnavailable(response.status())) return response.status();
    if (!response.ok()) {
      std::this_thread::sleep_for(kRenewPause);
      continue;
    }
    const auto& now = response->responses(response->succeeded() ? 1 : 0).response_range();
    if (judge(now, version) == Verdict::kLost) break;
  }
  return absl::FailedPreconditionError("leads no more");
}

Leadership::Verdict Leadership::judge(const pb::RangeResponse& now, int64_t version) {
  if (now.kvs_size() == 0 || now.kvs(0).create_revision() != term()) {
    lose("another coordinator has taken over");
    return Verdict::kLost;
  }
  std::lock_guard<std::mutex> hold(mutex_);
  version_ = std::max(version_, now.kvs(0).version());  // Answers may come in another order.
  return version_ == version ? Verdict::kOurs : Verdict::kNewFence;
}

}  // namespace telar::server::store
