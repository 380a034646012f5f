// Which of several coordinators leads: the one that holds a key in etcd, under a lease that it keeps renewing.
//
// The revision at which the key was made is the leader's *term*: it grows with every leader. Every write of a leader is
// compared with it inside etcd (fence()), so that one who has lost the key without knowing it writes nothing more. The
// lease by the clock (holds()) only tells such a one early. It is compared with the key's version, too, so that a write
// which got no answer cannot be done late, over what was written since.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/etcd_client.h"

namespace telar::server::store {

// What a write is compared with.
struct Fence {
  int64_t version = 0;
  std::vector<etcdserverpb::Compare> compares;
};

struct LeadershipOptions {
  std::string prefix = "/telar/";
  std::string address;          // Of this coordinator, as the others tell it to clients.
  std::chrono::seconds ttl{3};  // At most so long nobody leads when the leader dies, and a moment.
  // Called once, from any thread, when what was held is lost; not after resign(). May be empty.
  std::function<void(const std::string& why)> on_lost;
};

// Safe to call from any thread.
class Leadership {
 public:
  // `client` must outlive it.
  Leadership(EtcdClient* client, LeadershipOptions options);
  ~Leadership();  // resign()
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;

  // One try, of at most a second or so. True: this process leads from now on, until on_lost. False: leader() does.
  absl::StatusOr<bool> campaign();
  // The address of the last leader that campaign() saw; empty: none.
  std::string leader() const;
  // Gives the key back, so that another one can lead at once.
  void resign();

  bool holds() const;              // The lease cannot be over yet, by the monotonic clock.
  EtcdClient::Steady end() const;  // When it is, unless it is renewed.
  int64_t term() const;            // 0: never led.
  Fence fence() const;
  // After it, nothing counts that was fenced with `version` and has not been done: for when a write got no answer, and
  // might be done at any time. Nothing to do when the fence has moved on already. Comes back when that is sure;
  // FAILED_PRECONDITION: this process leads no more.
  absl::Status renew_fence(int64_t version);
  // Why a write was refused that was fenced with `version`; `now` is what etcd said of key() then. kLost is told.
  enum class Verdict { kOurs, kNewFence, kLost };  // kOurs: not because of the fence.
  Verdict judge(const etcdserverpb::RangeResponse& now, int64_t version);
  const std::string& key() const { return key_; }
  // For whoever sees that the key is another one's.
  void lose(const std::string& why);

 private:
  etcdserverpb::Compare born_in(int64_t term) const;
  void keep();
  bool wait(std::chrono::milliseconds time);  // False: it is over.

  EtcdClient* const client_;
  const LeadershipOptions options_;
  const std::string key_;

  mutable std::mutex mutex_;  // Guards all below but the thread.
  std::condition_variable changed_;
  std::string leader_;
  int64_t lease_ = 0;
  int64_t term_ = 0;
  int64_t version_ = 0;  // How often the key was written in this term.
  EtcdClient::Steady end_;
  bool held_ = false;  // Won, and neither lost nor given back.
  std::thread thread_;
};

}  // namespace telar::server::store
