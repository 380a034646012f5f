// The store in etcd, for coordinators that stand in for each other. Only the leader has one open.
//
// Keys, all below a prefix:
//   schema                     version of this layout
//   cluster                    what check_shared() compares
//   leader                     see leadership.h
//   jobs/<job>                 blob
//   heads/<job>                last event that counts; events beyond it were never committed
//   events/<job>/<sequence>    8 bytes of step, most significant first, and the blob
//   rest/<job>                 events that a commit has erased, but not all of them yet
//   streams/<job>/<epoch>/<rank>, answers/<request>, settings/<key>
//
// Every write is one etcd transaction that holds only while this process leads. A batch that is too large for one is
// written in three parts: its events, which do not count yet; then all else, and they count; then what it erases, which
// open_etcd() finishes should we die before. What is too large even so is refused (RESOURCE_EXHAUSTED) before anything
// is written.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/store/leadership.h"
#include "server/store/store.h"

namespace telar::server::store {

struct EtcdOptions {
  std::string prefix = "/telar/";
  std::function<void(double seconds)> on_commit;  // As in SqliteOptions.
  std::function<void()> on_transaction;
  std::function<void(const char* point)> failpoint;  // Tests only: called at "begin", "staged", "committed", "erased".
};

// `leadership` must hold. Both must outlive the store.
absl::StatusOr<std::unique_ptr<Store>> open_etcd(EtcdClient* client, Leadership* leadership, EtcdOptions options);

// Whether `folder` is the one that the other coordinators of this store have: a file in it must say what etcd says. The
// first one writes both. FAILED_PRECONDITION: another folder, or another cluster's.
absl::Status check_shared(EtcdClient* client, const std::string& prefix, const std::string& folder);

}  // namespace telar::server::store
