// The connection to the coordinator that all of a worker's calls share.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "telar/v1/cluster.grpc.pb.h"

namespace telar::agent {

// Thread safe.
class Line {
 public:
  explicit Line(std::string address);  // host:port, or several (common/addresses.h).

  const std::string& address() const { return address_; }
  // For one call: shared, as another thread may renew the line meanwhile.
  std::shared_ptr<v1::Cluster::Stub> stub() const;
  // The connection may be dead without anybody having been told. Calls from now on go over another one; those that are
  // under way end with the old one.
  void renew();

 private:
  const std::string address_;
  mutable std::mutex mutex_;
  std::shared_ptr<v1::Cluster::Stub> stub_;  // Guarded by mutex_.
};

}  // namespace telar::agent
