// The daemon's line to the coordinator: registers, keeps the heartbeat stream, dials again for ever.
//
// A lost line changes nothing on this node: the last assignments stay the wish until new ones come.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/line.h"
#include "telar/v1/cluster.grpc.pb.h"
#include "worker/metrics/daemon_metrics.h"

namespace telar::agent {

// What a heartbeat says of this node.
struct NodeStatus {
  std::vector<v1::RankStatus> ranks;  // In full.
  std::vector<v1::DeviceHealth> health;
  std::vector<v1::Receipt> receipts;
  v1::HeartbeatRequest::Leave leave = v1::HeartbeatRequest::LEAVE_UNSPECIFIED;
};

// Thread safe. It owns two threads: one dials and writes, one reads.
class CoordinatorLink {
 public:
  struct Told {
    // From the reading thread, in the order of arrival.
    std::function<void(v1::HeartbeatResponse)> on_assignments;
    // After each registration. Nothing is said before the next set_status(): the coordinator takes the first word for
    // all that there is.
    std::function<void()> on_registered;
    // The coordinator says that this node or its certificate is revoked. Each time that it says so.
    std::function<void()> on_revoked;
  };

  // `line` is renewed when the coordinator is silent on it for half of its lease: then there is time to register again.
  // `self` is sent at each registration. `line` and `metrics` must outlive this.
  CoordinatorLink(Line<v1::Cluster>* line, v1::RegisterNodeRequest self, metrics::DaemonMetrics* metrics, Told told);
  ~CoordinatorLink();  // Hangs up at once.
  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  void start();
  // A change is sent at once, unless it is only of what is in use, and the newest again every heartbeat interval.
  void set_status(NodeStatus status);
  // Waits until the first registration was answered, also by a refusal or an error.
  bool wait_first_attempt(std::chrono::milliseconds longest);
  // Waits until the coordinator has heard that this worker is GONE, after a set_status() that says so.
  bool wait_goodbye(std::chrono::milliseconds longest);

 private:
  using Stream = grpc::ClientReaderWriter<v1::HeartbeatRequest, v1::HeartbeatResponse>;

  void run();
  bool register_node();
  void converse();  // One heartbeat stream, until it breaks.
  void read(Stream& stream, grpc::ClientContext& context);
  bool over_by_itself();
  void take_refusal(const grpc::Status& status);  // Of a registration; with mutex_ held.
  // False: an older leader than one that was heard before.
  bool accept_term(const grpc::ClientContext& context);
  // Waits for something to send; false when the stream is over, silent or to be left.
  bool next_message(v1::HeartbeatRequest& message);
  bool wait_unless_stopping(std::chrono::milliseconds time);
  void set_call(grpc::ClientContext* context);

  Line<v1::Cluster>* const line_;
  const v1::RegisterNodeRequest self_;
  metrics::DaemonMetrics* const metrics_;
  const Told told_;

  std::mutex mutex_;  // Guards all below but the thread.
  std::condition_variable wake_;
  bool stopping_ = false;
  bool attempted_ = false;
  bool broken_ = false;
  bool changed_ = false;
  bool last_word_ = false;  // GONE was sent on this stream.
  bool goodbye_ = false;    // And heard.
  bool fresh_ = false;      // ranks_ were given since the last registration.
  uint64_t registration_ = 0;
  uint64_t sequence_ = 0;
  uint64_t term_ = 0;  // The newest of those coordinators that stand in for each other; see kTermHeader.
  NodeStatus status_;
  std::chrono::milliseconds interval_{2'000};
  std::chrono::milliseconds silence_{5'000};  // After this long without an answer the connection is given up.
  std::chrono::steady_clock::time_point heard_;
  grpc::ClientContext* call_ = nullptr;
  std::thread thread_;
};

}  // namespace telar::agent
