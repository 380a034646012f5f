// The store in etcd, for coordinators that stand in for each other. Only the leader has one open.
//
// Keys, all below a prefix:
//   schema                     version of this layout
//   cluster                    what check_shared() compares
//   leader                     see leadership.h
//   jobs/<job>                 blob
//   heads/<job>                the last event of the job
//   events/<job>/<sequence>    8 bytes of step, most significant first, and the blob
//   streams/<job>/<epoch>/<rank>, answers/<request>, settings/<key>
//   parts/<change>/<number>    of a change that is too large for one transaction: operations, an etcd TxnRequest each
//   changes/<change>           how many; it stands from now on, and is gone once it is carried out
//
// Every write is one etcd transaction that holds only while this process leads. What is too large for one is written
// down in parts, then it stands, then it is carried out; open_etcd() finishes it should we die before. A single value
// that is too large is refused (RESOURCE_EXHAUSTED) before anything is written.
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
  std::function<void(const char* point)> failpoint;  // Tests only: called at "begin", "staged", "committed", "part".
};

// `leadership` must hold. Both must outlive the store.
absl::StatusOr<std::unique_ptr<Store>> open_etcd(EtcdClient* client, Leadership* leadership, EtcdOptions options);

// Whether `folder` is the one that the other coordinators of this store have: a file in it must say what etcd says. The
// first one writes both. FAILED_PRECONDITION: another folder, or another cluster's.
absl::Status check_shared(EtcdClient* client, const std::string& prefix, const std::string& folder);

}  // namespace telar::server::store
