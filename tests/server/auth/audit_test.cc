#include "server/auth/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/fakes/fake_clock.h"
#include "tests/server/scratch.h"

namespace telar::server::auth {
namespace {

class Audit : public testing::Test {
 protected:
  void open(uint64_t most_bytes = 1 << 20, int keep = 3) {
    log_.reset();
    auto log = AuditLog::open({.path = path_, .most_bytes = most_bytes, .keep = keep}, &clock_);
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = std::move(*log);
  }
  static std::vector<nlohmann::json> lines(const std::string& path) {
    std::ifstream file(path);
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  void write(const std::string& resource) {
    log_->write({&ann_, "ipv4:1.2.3.4:5", "telar.v1.Jobs/CancelJob", resource, "r-1", "OK", ""});
  }

  tests::Scratch scratch_;
  fakes::FakeClock clock_;
  const std::string path_ = scratch_.path("audit.jsonl");
  Caller ann_{Caller::Kind::kPerson, "ann", {}, ""};
  std::unique_ptr<AuditLog> log_;
};

TEST_F(Audit, SaysWhoDidWhat) {
  open();
  write("projects/default/jobs/x");
  open();  // As after a restart.
  const Caller node{Caller::Kind::kNode, "n1", {}, ""};
  log_->write({&node, "", "telar.v1.Cluster/RegisterNode", "bad \xff bytes", "", "PERMISSION_DENIED", "REVOKED"});
  const auto all = lines(path_);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].dump(),
            R"({"code":"OK","method":"telar.v1.Jobs/CancelJob","peer":"ipv4:1.2.3.4:5","request_id":"r-1",)"
            R"("resource":"projects/default/jobs/x","time":"2027-01-15T08:00:00.000Z","user":"ann"})");
  EXPECT_EQ(all[1]["node"], "n1");
  EXPECT_EQ(all[1]["reason"], "REVOKED");
}

TEST_F(Audit, GrowsOnlySoFar) {
  open(400, 2);
  for (int i = 0; i < 20; ++i) write("job-" + std::to_string(i));
  EXPECT_LE(std::filesystem::file_size(path_), 400u);
  EXPECT_EQ(lines(path_).back()["resource"], "job-19");
  EXPECT_FALSE(lines(path_ + ".1").empty());
  EXPECT_TRUE(std::filesystem::exists(path_ + ".2"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".3"));
}

TEST_F(Audit, StrangersDoNotWashItOut) {
  open();
  const auto refuse = [&] { log_->write({nullptr, "p", "m", "", "", "UNAUTHENTICATED", "NO_TOKEN"}); };
  for (int i = 0; i < 100; ++i) refuse();
  write("mine");
  clock_.advance(std::chrono::seconds(1));
  refuse();
  const auto all = lines(path_);
  ASSERT_EQ(all.size(), kMostRefusals + 2u);
  EXPECT_EQ(all[kMostRefusals]["refusals_left_out"], 100 - kMostRefusals);
  EXPECT_EQ(all.back().count("refusals_left_out"), 0u);
}

TEST_F(Audit, AFullDiskStopsNobodyAndIsToldLater) {
  std::filesystem::create_symlink("/dev/full", path_);
  open();
  write("lost");
  write("lost too");
  EXPECT_EQ(log_->lost(), 2u);
  log_.reset();
  auto nowhere = AuditLog::open({.path = scratch_.path("no/such/folder")}, &clock_);
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace telar::server::auth
