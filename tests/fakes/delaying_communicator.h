// A communicator whose calls come late: what a program must survive without a deadlock, whatever the ranks' pace.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "worker/backend/collectives.h"

namespace telar::fakes {

// When calls come late, and how much. Of a seed always the same.
struct Delays {
  uint64_t seed = 0;
  double chance = 0.25;                     // That a call is late.
  std::chrono::microseconds longest{2000};  // Late calls are by anything up to this, uniformly.
  // What being late is.
  std::function<void(std::chrono::microseconds)> pause = [](auto time) { std::this_thread::sleep_for(time); };
};

// Each call first pauses on the thread that makes it, which on the CPU is its lane's. Threads: as the inner one.
class DelayingCommunicator final : public backend::Communicator {
 public:
  // `inner` outlives it. `salt` tells the communicators of one seed apart: rank and group.
  DelayingCommunicator(backend::Communicator& inner, const Delays& delays, uint64_t salt)
      : inner_(inner), delays_(delays), generator_(delays.seed * 0x9e3779b97f4a7c15 + salt) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  absl::Status all_reduce(backend::Stream& stream, backend::ReduceOp op, backend::InOut x) override {
    delay();
    return inner_.all_reduce(stream, op, x);
  }
  absl::Status all_gather(backend::Stream& stream, backend::In x, backend::Out y) override {
    delay();
    return inner_.all_gather(stream, x, y);
  }
  absl::Status reduce_scatter(backend::Stream& stream, backend::ReduceOp op, backend::In x, backend::Out y) override {
    delay();
    return inner_.reduce_scatter(stream, op, x, y);
  }
  absl::Status broadcast(backend::Stream& stream, int root, backend::InOut x) override {
    delay();
    return inner_.broadcast(stream, root, x);
  }
  absl::Status send(backend::Stream& stream, int peer, backend::In x) override {
    delay();
    return inner_.send(stream, peer, x);
  }
  absl::Status recv(backend::Stream& stream, int peer, backend::Out y) override {
    delay();
    return inner_.recv(stream, peer, y);
  }
  absl::Status exchange(backend::Stream& stream, int to, backend::In x, int from, backend::Out y) override {
    delay();
    return inner_.exchange(stream, to, x, from, y);
  }
  absl::Status barrier() override {
    delay();
    return inner_.barrier();
  }

 private:
  void delay() {
    // Two draws a call, whatever comes of them: a call's delay depends on its number only.
    const double whether = std::uniform_real_distribution<>(0, 1)(generator_);
    const auto time = std::uniform_int_distribution<int64_t>(0, delays_.longest.count())(generator_);
    if (whether < delays_.chance) delays_.pause(std::chrono::microseconds(time));
  }

  backend::Communicator& inner_;
  const Delays delays_;
  std::mt19937_64 generator_;
};

// All communicators of rank `rank`, delayed.
inline std::vector<std::unique_ptr<backend::Communicator>> delayed(const std::vector<backend::Communicator*>& groups,
                                                                   const Delays& delays, int rank) {
  std::vector<std::unique_ptr<backend::Communicator>> late;
  for (size_t group = 0; group < groups.size(); ++group) {
    const uint64_t salt = static_cast<uint64_t>(rank) * 4096 + group;
    late.push_back(std::make_unique<DelayingCommunicator>(*groups[group], delays, salt));
  }
  return late;
}

}  // namespace telar::fakes
