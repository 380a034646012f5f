#include "worker/agent/line.h"

#include <utility>

#include "common/channel.h"

namespace telar::agent {

Line::Line(std::string address) : address_(std::move(address)) { renew(); }

std::shared_ptr<v1::Cluster::Stub> Line::stub() const {
  const std::lock_guard lock(mutex_);
  return stub_;
}

void Line::renew() {
  std::shared_ptr<v1::Cluster::Stub> stub = v1::Cluster::NewStub(dial(address_, Connection::kOwn));
  const std::lock_guard lock(mutex_);
  stub_ = std::move(stub);
}

}  // namespace telar::agent
