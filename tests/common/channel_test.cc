#include "common/channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/loopback_listener.h"

namespace telar {
namespace {

// Accepts connections and says HTTP/2's hello (an empty SETTINGS frame) only after a while, as a busy or far machine
// does.
class SlowPeer {
 public:
  explicit SlowPeer(std::chrono::milliseconds delay) {
    thread_ = std::thread([this, delay] { serve(delay); });
  }
  ~SlowPeer() {
    shutdown(listener_.fd(), SHUT_RDWR);
    thread_.join();
  }
  SlowPeer(const SlowPeer&) = delete;
  SlowPeer& operator=(const SlowPeer&) = delete;

  const std::string& address() const { return listener_.address(); }
  int accepted() const { return accepted_; }

 private:
  void serve(std::chrono::milliseconds delay) {
    std::vector<int> connections;
    for (int connection = 0; (connection = accept(listener_.fd(), nullptr, nullptr)) >= 0;) {
      ++accepted_;
      connections.push_back(connection);
      std::this_thread::sleep_for(delay);
      constexpr char kSettings[9] = {0, 0, 0, 4, 0, 0, 0, 0, 0};
      send(connection, kSettings, sizeof(kSettings), MSG_NOSIGNAL);
    }
    for (const int connection : connections) close(connection);
  }

  const fakes::LoopbackListener listener_;
  std::atomic<int> accepted_ = 0;
  std::thread thread_;
};

TEST(Dial, WaitsForAPeerThatIsSlowToGreet) {
  const SlowPeer peer(std::chrono::milliseconds(400));
  const auto channel = dial(peer.address());
  EXPECT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10)));
  EXPECT_EQ(peer.accepted(), 1) << "the first attempt was given up";
}

// As between two tries of a call: no thread waits in gRPC, and so none of them looks after its sockets. By itself gRPC
// would do so every 5 s.
TEST(Dial, ConnectsWhileNoCallIsMade) {
  const SlowPeer peer(std::chrono::milliseconds(50));
  const auto channel = dial(peer.address());
  channel->GetState(/*try_to_connect=*/true);
  for (int i = 0; i < 300 && channel->GetState(false) != GRPC_CHANNEL_READY; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_READY);
}

TEST(Dial, KnowsWhichAddressesOnlyThisMachineReaches) {
  for (const char* inside : {"127.0.0.1:7070", "127.8.9.1:0", "localhost:1", "[::1]:7070", "unix:/run/telar"}) {
    EXPECT_TRUE(is_loopback(inside)) << inside;
  }
  for (const char* outside :
       {"0.0.0.0:7070", "[::]:7070", "10.0.0.1:1", "127.example.com:1", "localhost.lan:1", ":1"}) {
    EXPECT_FALSE(is_loopback(outside)) << outside;
  }
}

}  // namespace
}  // namespace telar
