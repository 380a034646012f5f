#include "worker/agent/clean_end.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace telar::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CleanEnd : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
    std::ofstream(root_ + "/nvidia0") << "a device";
    facts_.device.set_kind(v1::ResourceSpec::GPU);
    facts_.device_file = root_ + "/nvidia0";
    facts_.spawner = getpid();
  }
  void TearDown() override {
    for (int pid : children_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    std::filesystem::remove_all(root_);
  }
  // A child of this process, which plays the spawner, with the file open.
  int holder() {
    const int file = open(facts_.device_file.c_str(), O_RDONLY);
    const int pid = fork();
    if (pid == 0) {
      while (true) pause();
    }
    close(file);
    children_.push_back(pid);
    return pid;
  }

  std::string root_;
  EndFacts facts_;
  std::vector<int> children_;
};

TEST_F(CleanEnd, NothingLeftIsClean) { EXPECT_THAT(find_residues(facts_), IsEmpty()); }

TEST_F(CleanEnd, AnOrphanOnTheDeviceIsFoundAndKilled) {
  const int pid = holder();
  const auto left = find_residues(facts_);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].pid(), pid);
  EXPECT_THAT(left[0].message(), HasSubstr("gpu:0: pid " + std::to_string(pid) + " holds " + facts_.device_file));
  waitpid(pid, nullptr, 0);
  children_.clear();
  EXPECT_THAT(find_residues(facts_), IsEmpty());
}

TEST_F(CleanEnd, OthersMayHoldTheDevice) {
  const int pid = holder();
  facts_.probe = pid;  // Our probe.
  EXPECT_THAT(orphans_on(facts_), IsEmpty());
  facts_.probe = 0;
  EXPECT_THAT(orphans_on(facts_), ElementsAre(pid));
  setpgid(pid, pid);  // As the leader of a rank that lives.
  facts_.others = {{*identify(pid), "TELAR_RANK_DIR=none", ""}};
  EXPECT_THAT(orphans_on(facts_), IsEmpty());
  facts_.others.clear();
  facts_.spawner = 1;  // A stranger: neither our child nor marked.
  EXPECT_THAT(orphans_on(facts_), IsEmpty());
}

TEST_F(CleanEnd, MemoryMustBeBackWhereItWas) {
  facts_.used_before = 1ULL << 30;
  EXPECT_THAT(find_residues(facts_), IsEmpty());  // Nobody can tell.
  facts_.used_now = (1ULL << 30) + kMemorySlack;
  EXPECT_THAT(find_residues(facts_), IsEmpty());
  facts_.used_now = 3ULL << 30;
  const auto left = find_residues(facts_);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].pid(), 0);
  EXPECT_EQ(left[0].message(), "gpu:0: 2048 MiB more in use than before the rank started");
}

TEST_F(CleanEnd, NamesThePortsOfAProcess) {
  EXPECT_THAT(listening_ports(getpid()), IsEmpty());
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  socklen_t size = sizeof(address);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_THAT(listening_ports(getpid()), ElementsAre(ntohs(address.sin_port)));
  close(listener);
}

}  // namespace
}  // namespace telar::agent
