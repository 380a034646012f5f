// A stream without a thread: what it is given is done before the call comes back.
#pragma once

#include <cstring>
#include <functional>

#include "worker/backend/device.h"

namespace telar::fakes {

// For one thread that waits for each op anyway, which costs two wake-ups an op on a stream with a thread of its own.
// Errors stay until the end, as there. Events mean nothing to it: whoever records or awaits one needs another stream.
class InlineStream final : public backend::Stream {
 public:
  void submit(const std::function<absl::Status(backend::Stream&)>& work) override {
    if (status_.ok()) status_ = work(*this);
  }
  void record(backend::Event&) override { status_.Update(absl::UnimplementedError("an inline stream has no events")); }
  void wait(backend::Event& event) override { record(event); }
  void copy(void* to, const void* from, size_t bytes) override {
    if (status_.ok() && bytes > 0) std::memcpy(to, from, bytes);
  }
  absl::Status synchronize() override { return status_; }

 private:
  absl::Status status_;
};

}  // namespace telar::fakes
