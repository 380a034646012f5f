// What the Gloo tests share: a group of ranks as threads, and views over plain vectors.
#pragma once

#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fakes/key_value_store.h"
#include "worker/backend/cpu/cpu.h"

namespace telar::backend::cpu {

// Gloo's collectives block the calling thread and need nothing of a stream.
class NoStream final : public Stream {
 public:
  void submit(const std::function<absl::Status(Stream&)>&) override {}
  void record(Event&) override {}
  void wait(Event&) override {}
  void copy(void*, const void*, size_t) override {}
  absl::Status synchronize() override { return absl::OkStatus(); }
};

template <typename T>
View view_of(std::vector<T>& values) {
  View view;
  view.buffer = 0;
  view.dtype = DTypeOf<T>::value;
  view.shape = Shape{static_cast<int64_t>(values.size())};
  view.data = reinterpret_cast<std::byte*>(values.data());
  return view;
}

inline CommunicatorOptions options_for(const std::string& name, int rank, int size) {
  return {.name = name,
          .rank = rank,
          .size = size,
          .listen_host = "127.0.0.1",
          .connect_timeout = std::chrono::seconds(60),
          .call_timeout = std::chrono::seconds(60)};
}

// One group, as Device::create_communicator() makes it.
inline absl::StatusOr<std::unique_ptr<Communicator>> create_gloo_communicator(KeyValueStore& store,
                                                                              const CommunicatorOptions& options) {
  return create_device({}, nullptr, create_gloo_communicators)->create_communicator(store, options);
}

// Runs `body` once a rank, each on a thread of its own with a connected communicator. No body begins before all are
// connected: a member that fails in its first call closes its connections, which a slower one may still be setting up.
using RankBody = std::function<void(Communicator&, Stream&)>;
inline void run_group(int size, const RankBody& body,
                      std::chrono::milliseconds call_timeout = std::chrono::seconds(60)) {
  fakes::InProcessStore store;
  std::barrier all_connected(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = options_for("group", rank, size);
      options.call_timeout = call_timeout;
      auto communicator = create_gloo_communicator(store, options);
      all_connected.arrive_and_wait();
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      NoStream stream;
      body(**communicator, stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace telar::backend::cpu
