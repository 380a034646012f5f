// A coordinator among several of one etcd: it waits as a standby until it leads.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/options.h"
#include "server/rpc/metrics.h"
#include "server/store/etcd_store.h"
#include "server/store/store.h"

namespace telar::server {

// Where this coordinator listens, with the ports that it got.
struct Places {
  std::string grpc;
  std::string http;
};

// For one thread, the main one.
class Candidate {
 public:
  // UNAVAILABLE: no etcd answers. FAILED_PRECONDITION: --data is not the folder of the other coordinators.
  static absl::StatusOr<std::unique_ptr<Candidate>> open(const Options& options);

  // Binds both addresses and refuses all calls until this coordinator leads; then they are free for the real servers.
  // None: SIGTERM or SIGINT came first. `on_bound` is told the places; `advertised` makes of the gRPC one what others
  // reach. ALREADY_EXISTS names an address that cannot be had.
  absl::StatusOr<std::optional<Places>> wait_for_turn(const std::function<absl::Status(const Places&)>& on_bound,
                                                      const std::function<std::string(const std::string&)>& advertised);
  absl::StatusOr<std::unique_ptr<store::Store>> open_store(rpc::Metrics* metrics);
  uint64_t term() const { return static_cast<uint64_t>(leadership_->term()); }
  // The leadership was lost; SIGUSR1 comes when that happens.
  bool deposed() const { return deposed_; }

 private:
  explicit Candidate(const Options& options, const std::vector<std::string>& endpoints)
      : options_(options), client_(endpoints, options.etcd) {}

  const Options options_;
  std::atomic<bool> deposed_{false};
  store::EtcdClient client_;
  std::unique_ptr<store::Leadership> leadership_;
  std::atomic<const store::Leadership*> asked_{nullptr};  // The same, for the standby's threads.
};

}  // namespace telar::server
