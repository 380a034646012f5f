// Calls to etcd's v3 API, at whichever of its addresses answers. Safe to call from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "etcd/rpc.pb.h"
#include "server/store/etcd_access.h"

namespace telar::server::store {

// "etcd://host:port[,host:port]" -> its addresses. INVALID_ARGUMENT says what is wrong.
absl::StatusOr<std::vector<std::string>> etcd_endpoints(const std::string& url);

// The first key behind all that begin with `prefix`.
std::string end_of_prefix(std::string prefix);

class EtcdClient {
 public:
  using Steady = std::chrono::steady_clock::time_point;

  explicit EtcdClient(std::vector<std::string> endpoints, EtcdAccess access = {});
  ~EtcdClient();

  // Tries all addresses in turn until `until`. UNAVAILABLE: nobody answered, and a txn may have been done all the same.
  absl::StatusOr<etcdserverpb::RangeResponse> range(const etcdserverpb::RangeRequest& request, Steady until);
  absl::StatusOr<etcdserverpb::TxnResponse> txn(const etcdserverpb::TxnRequest& request, Steady until);
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> grant(std::chrono::seconds ttl, Steady until);
  absl::Status revoke(int64_t lease, Steady until);
  // Forgets values older than `revision`; tried once.
  absl::Status compact(int64_t revision);

  // One try at one address; UNAVAILABLE as above, and the next try goes to the next address.
  absl::StatusOr<etcdserverpb::TxnResponse> try_txn(const etcdserverpb::TxnRequest& request, Steady until);
  // One try. How long the lease lives from when etcd got this; zero: it is over.
  absl::StatusOr<std::chrono::seconds> try_keep_alive(int64_t lease, Steady until);

  // All of a prefix, in order of key, as of one revision. `patience`: for each of some hundred keys.
  absl::StatusOr<std::vector<etcdserverpb::KeyValue>> all(const std::string& prefix, std::chrono::seconds patience);

  std::string name() const { return name_; }  // "etcd://a:2379,b:2379", for messages.

 private:
  struct Stubs;
  class Member;

  template <typename Response, typename Call>
  absl::StatusOr<Response> attempt(Steady until, const char* doing, Call call);
  // One call to one address, with a new token if need be. UNAVAILABLE: no answer came.
  template <typename Response, typename Call>
  absl::StatusOr<Response> ask(Member& member, Steady until, const char* doing, Call call);
  // The one of before, or one that `member` gives now; empty without a user.
  absl::StatusOr<std::string> token(Member& member, Steady until);
  void drop_token(const std::string& refused);
  absl::Status told(const grpc::Status& status, const std::string& doing) const;
  template <typename Response, typename Call>
  absl::StatusOr<Response> retry(Steady until, const char* doing, Call call);

  const EtcdAccess access_;
  std::string name_;
  std::mutex mutex_;
  std::string token_;  // Guarded by mutex_; empty: none yet.
  std::vector<std::unique_ptr<Member>> members_;
  std::atomic<size_t> current_{0};
};

}  // namespace telar::server::store
