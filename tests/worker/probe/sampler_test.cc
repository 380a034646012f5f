// Against a fake of the driver's library, loaded as the real one is.
#include "worker/probe/sampler.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace telar::probe {
namespace {

using std::chrono::milliseconds;

class SamplerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = (std::filesystem::temp_directory_path() / "telar_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
    setenv("TELAR_FAKE_NVML", (root_ + "/script").c_str(), 1);
    play("devices 2\nused 0 1000\nlink 1 0 1\nlink 1 1 0\necc 0 7\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void play(const std::string& script) {
    std::ofstream(root_ + "/new") << script;
    std::filesystem::rename(root_ + "/new", root_ + "/script");
  }
  std::unique_ptr<Sampler> open() {
    const char* given = getenv("TELAR_BIN_DIR");
    const std::string folder =
        given != nullptr ? given : std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
    std::string problem;
    auto sampler = Sampler::open(folder + "/libfake_nvml.so", problem);
    EXPECT_NE(sampler, nullptr) << problem;
    return sampler;
  }

  std::string root_;
};

using Counts = std::map<std::string, uint64_t>;

TEST_F(SamplerTest, AHealthyDeviceHasNothingToTell) {
  const auto sampler = open();
  const Report report = sampler->sample();
  ASSERT_EQ(report.devices.size(), 2u);
  EXPECT_EQ(report.round, 1u);
  EXPECT_EQ(report.devices[0].used_bytes, 1000u);
  for (const DeviceReading& one : report.devices) {
    EXPECT_EQ(one.counts, Counts());  // Old errors are none of ours; a link that never was up is not down.
    EXPECT_TRUE(one.holding.empty());
  }
}

TEST_F(SamplerTest, CountsEventsByTheirCode) {
  play("devices 2\nxid 0 48\n");  // Before we looked.
  const auto sampler = open();
  sampler->sample();
  play("devices 2\nxid 0 48\nxid 1 79\nxid 1 31\nxid 1 31\n");
  sampler->wait(milliseconds(2000));
  const Report report = sampler->sample();
  EXPECT_EQ(report.devices[0].counts, Counts());
  EXPECT_EQ(report.devices[1].counts, (Counts{{"xid-79", 1}, {"xid-31", 2}}));
}

TEST_F(SamplerTest, CountsErrorsAndLinksThatGoDown) {
  const auto sampler = open();
  sampler->sample();
  play("devices 2\necc 0 9\nlink 1 0 0\nlink 1 1 0\npid 0 77\n");
  Report report = sampler->sample();
  report = sampler->sample();
  EXPECT_EQ(report.devices[0].counts, (Counts{{"ecc-uncorrected", 2}}));
  EXPECT_EQ(report.devices[0].pids, std::vector<int>{77});
  EXPECT_EQ(report.devices[1].counts, (Counts{{"nvlink-0-down", 1}}));
  EXPECT_EQ(report.devices[1].holding, std::set<std::string>{"nvlink-0-down"});
  play("devices 2\necc 0 9\nlink 1 0 1\nlink 1 1 0\n");
  report = sampler->sample();
  EXPECT_TRUE(report.devices[1].holding.empty());
  EXPECT_TRUE(report.devices[0].pids.empty());
  play("devices 2\necc 0 9\nlink 1 0 0\n");
  EXPECT_EQ(sampler->sample().devices[1].counts, (Counts{{"nvlink-0-down", 2}}));
}

TEST_F(SamplerTest, NotesWhatHoldsAndWhatIsOver) {
  const auto sampler = open();
  play("devices 2\nremap 0 1 0\nlost 1\n");
  Report report = sampler->sample();
  EXPECT_EQ(report.devices[0].holding, std::set<std::string>{"remap-pending"});
  EXPECT_EQ(report.devices[1].holding, std::set<std::string>{"gpu-lost"});
  play("devices 2\nremap 0 0 1\n");
  report = sampler->sample();
  EXPECT_EQ(report.devices[0].holding, std::set<std::string>{"remap-failed"});
  EXPECT_TRUE(report.devices[1].holding.empty());
  EXPECT_EQ(report.devices[0].counts, (Counts{{"remap-pending", 1}, {"remap-failed", 1}}));
}

TEST_F(SamplerTest, SaysWhyThereIsNone) {
  std::string problem;
  EXPECT_EQ(Sampler::open(root_ + "/none.so", problem), nullptr);
  EXPECT_NE(problem.find("none.so"), std::string::npos);
}

TEST(Report, SurvivesTheWire) {
  Report report;
  report.round = 5;
  report.devices.resize(1);
  report.devices[0].index = 3;
  report.devices[0].used_bytes = 1ULL << 40;
  report.devices[0].pids = {1, 2};
  report.devices[0].counts = {{"xid-79", 1}};
  report.devices[0].holding = {"gpu-lost"};
  const auto read = parse_report(to_text(report));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(to_text(*read), to_text(report));
  for (const char* bad : {"", "{}", "[1]", "{\"round\":1,\"devices\":[{}]}", "{\"round\":-1,\"devices\":3}"}) {
    EXPECT_FALSE(parse_report(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace telar::probe
