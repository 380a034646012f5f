// Saving and reading on the real file system.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/checkpoint/state.h"
#include "worker/checkpoint/run_files.h"

namespace telar::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class Checkpoint : public testing::Test {
 protected:
  Checkpoint() {
    std::string pattern = testing::TempDir() + "/telar-ckpt-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
    run_ = root_ + "/runs/one";
  }
  ~Checkpoint() override { fs::remove_all(root_); }
  std::string ckpt(const std::string& name) const { return run_ + "/ckpt/" + name; }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(run_ + "/ckpt")) found.push_back(entry.path().filename());
    return found;
  }
  // Step of the newest good checkpoint; 0 when there is none.
  uint64_t latest() {
    const auto found = find_latest(files_, run_, Depth::kContents).value();
    return found.checkpoint == nullptr ? 0 : found.checkpoint->manifest().step;
  }

  FileSystem& files_ = FileSystem::posix();
  std::string root_, run_;
};

TEST_F(Checkpoint, RoundTrips) {
  EXPECT_EQ(find_latest(files_, run_, Depth::kContents).value().checkpoint, nullptr);
  const State state(1200);
  const auto saved = save(files_, run_, state, 3);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->path, ckpt("step-00001200"));
  EXPECT_FALSE(saved->already_there);
  EXPECT_THAT(saved->warnings, IsEmpty());
  EXPECT_THAT(names(), UnorderedElementsAre("step-00001200", "LATEST"));
  std::string hint;
  std::getline(std::ifstream(ckpt("LATEST")), hint);
  EXPECT_EQ(hint, "step-00001200");

  const auto found = find_latest(files_, run_, Depth::kContents).value();
  ASSERT_NE(found.checkpoint, nullptr);
  EXPECT_THAT(found.skipped, IsEmpty());
  const CheckpointReader& reader = *found.checkpoint;
  EXPECT_TRUE(compare(reader, state).ok());
  EXPECT_FALSE(compare(reader, State(1201)).ok());
  const Manifest& manifest = reader.manifest();
  EXPECT_EQ(manifest.job, "projects/p/jobs/j");
  EXPECT_EQ(manifest.epoch, 3u);
  EXPECT_EQ(manifest.seed, 7u);
  EXPECT_EQ(manifest.spec_json, R"({"name":"j","batch":{"global":8}})");
  EXPECT_EQ(manifest.layout, (Layout{.dp = 2}));
  uint64_t bytes = fs::file_size(ckpt("step-00001200/manifest.json"));
  for (const FileEntry& file : manifest.files) {
    EXPECT_EQ(fs::file_size(ckpt("step-00001200/" + file.name)), file.bytes);
    bytes += file.bytes;
  }
  EXPECT_EQ(saved->bytes, bytes);
}

TEST_F(Checkpoint, ShardsStayBelowTheLimit) {
  // 10 + 60 + 120 + 120 + 4 bytes, fp32 first: [120], [120, 4], [10, 60] at 128; all alone at 1; all together at 1 MB.
  const State state(1);
  for (const auto& [limit, shards] : std::vector<std::pair<uint64_t, size_t>>{{128, 3}, {1, 5}, {1 << 20, 1}}) {
    fs::remove_all(run_);
    ASSERT_TRUE(save(files_, run_, state, 1, 0, limit).ok());
    const auto reader = CheckpointReader::open(files_, ckpt("step-00000001")).value();
    EXPECT_EQ(reader->manifest().files.size(), shards);
    EXPECT_TRUE(compare(*reader, state).ok());
  }
}

TEST_F(Checkpoint, EmptyTensorsAndNoTensors) {
  auto writer = CheckpointWriter::create(files_, run_, 1, 1).value();
  ASSERT_TRUE(writer->add({.name = "none", .shape = {0, 4}}).ok());
  ASSERT_TRUE(writer->publish({}, {}).ok());
  const auto reader = CheckpointReader::open(files_, ckpt("step-00000001")).value();
  EXPECT_TRUE(reader->read("none", TensorKind::kWeight, {}).ok());
  EXPECT_TRUE(reader->verify().ok());
}

TEST_F(Checkpoint, ReadsAnyRangeOfAnyCut) {
  // A tensor of [3, 4, 5] cut into boxes along each axis and all of them; element i holds i.
  std::vector<int32_t> whole(60);
  for (int32_t i = 0; i < 60; ++i) whole[i] = i;
  struct Cut {
    std::vector<std::vector<int64_t>> offsets, extents;
  };
  const std::vector<Cut> cuts = {{{{0, 0, 0}}, {{3, 4, 5}}},
                                 {{{0, 0, 0}, {2, 0, 0}}, {{2, 4, 5}, {1, 4, 5}}},
                                 {{{0, 0, 0}, {0, 1, 0}}, {{3, 1, 5}, {3, 3, 5}}},
                                 {{{0, 0, 0}, {0, 0, 2}}, {{3, 4, 2}, {3, 4, 3}}},
                                 {{{0, 0, 0}, {0, 2, 0}, {0, 2, 3}, {2, 0, 0}, {1, 0, 0}},
                                  {{1, 2, 5}, {1, 2, 3}, {1, 2, 2}, {1, 4, 5}, {1, 4, 5}}}};
  uint64_t step = 0;
  for (const Cut& cut : cuts) {
    auto writer = CheckpointWriter::create(files_, run_, ++step, 1, 64).value();
    std::vector<std::vector<int32_t>> boxes;
    for (size_t box = 0; box < cut.offsets.size(); ++box) {
      const auto& o = cut.offsets[box];
      const auto& e = cut.extents[box];
      std::vector<int32_t>& data = boxes.emplace_back();
      for (int64_t x = o[0]; x < o[0] + e[0]; ++x) {
        for (int64_t y = o[1]; y < o[1] + e[1]; ++y) {
          for (int64_t z = o[2]; z < o[2] + e[2]; ++z) data.push_back(whole[(x * 4 + y) * 5 + z]);
        }
      }
    }
    for (size_t box = 0; box < boxes.size(); ++box) {
      ASSERT_TRUE(writer
                      ->add({"t",
                             TensorKind::kMaster,
                             backend::DType::kI32,
                             {3, 4, 5},
                             std::as_bytes(std::span(boxes[box])),
                             cut.offsets[box],
                             cut.extents[box]})
                      .ok());
    }
    const auto saved = writer->publish({}, {});
    ASSERT_TRUE(saved.ok()) << saved.status();
    const auto reader = CheckpointReader::open(files_, saved->path).value();
    for (int64_t first = 0; first <= 60; ++first) {
      for (int64_t count = 0; first + count <= 60; ++count) {
        std::vector<int32_t> part(count, -1);
        ASSERT_TRUE(
            reader->read_range("t", TensorKind::kMaster, first, count, std::as_writable_bytes(std::span(part))).ok());
        ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first))
            << step << ": " << first << "+" << count;
      }
    }
  }
}

TEST_F(Checkpoint, PiecesLargerThanTheBuffer) {
  const State state(1, /*rows=*/700'000);  // 14 MB of fp32.
  ASSERT_TRUE(save(files_, run_, state, 1, 0, 1 << 24).ok());
  const auto reader = CheckpointReader::open(files_, ckpt("step-00000001")).value();
  EXPECT_TRUE(compare(*reader, state).ok());
  EXPECT_TRUE(reader->verify().ok());
  std::vector<std::byte> part(4 * 2'000'000);
  ASSERT_TRUE(reader->read_range("wte", TensorKind::kMaster, 1'234'567, 2'000'000, part).ok());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), state.tensors[2].data.begin() + 4 * 1'234'567));
}

TEST_F(Checkpoint, ReadsNameWhatIsWrong) {
  ASSERT_TRUE(save(files_, run_, State(1)).ok());
  const auto reader = CheckpointReader::open(files_, ckpt("step-00000001")).value();
  std::vector<std::byte> out(120);
  EXPECT_EQ(reader->read("wpe", TensorKind::kMaster, out).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(reader->read("norm", TensorKind::kMaster, out).code(), absl::StatusCode::kNotFound);
  const auto size = reader->read("wte", TensorKind::kWeight, out);
  EXPECT_THAT(std::string(size.message()), AllOf(HasSubstr("weight wte"), HasSubstr("30 elements"), HasSubstr("120")));
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{{-1, 30}, {1, 30}, {31, 30}, {0, -30}}) {
    EXPECT_FALSE(reader->read_range("wte", TensorKind::kMaster, first, count, out).ok());
  }
}

TEST_F(Checkpoint, WriterRefusesPartsThatDoNotFit) {
  auto writer = CheckpointWriter::create(files_, run_, 1, 1).value();
  std::vector<std::byte> data(24);
  EXPECT_THAT(std::string(writer->add({.name = "t", .shape = {5}, .data = data}).message()),
              AllOf(HasSubstr("weight t"), HasSubstr("24 bytes"), HasSubstr("20")));
  EXPECT_FALSE(writer->add({.name = "t", .shape = {-6}, .data = data}).ok());
  EXPECT_FALSE(writer->add({.name = "t", .shape = {6}, .data = data, .offset = {0, 0}, .extent = {6, 1}}).ok());
  ASSERT_TRUE(writer->add({.name = "t", .shape = {12}, .data = data, .offset = {6}, .extent = {6}}).ok());
  EXPECT_FALSE(writer->add({.name = "t", .shape = {6}, .data = data}).ok());
  EXPECT_FALSE(writer->add_tied("u", TensorKind::kMaster, "t").ok());
  EXPECT_FALSE(writer->add_tied("t", TensorKind::kWeight, "t").ok());
  const auto status = writer->publish({}, {}).status();  // Elements 0 to 5 are missing.
  EXPECT_THAT(std::string(status.message()), HasSubstr("weight t has chunks of 24 bytes, but is 48"));
  writer.reset();
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(Checkpoint, KeepsTheNewest) {
  for (const uint64_t step : {10, 20, 30}) ASSERT_TRUE(save(files_, run_, State(step), 1, 0).ok());
  const auto saved = save(files_, run_, State(40), 1, 2).value();
  EXPECT_THAT(saved.removed, ElementsAre(ckpt("step-00000010"), ckpt("step-00000020")));
  EXPECT_THAT(saved.warnings, IsEmpty());
  EXPECT_THAT(names(), UnorderedElementsAre("step-00000030", "step-00000040", "LATEST"));
}

TEST_F(Checkpoint, RetentionCountsOnlyCompleteOnes) {
  for (const uint64_t step : {10, 20, 30}) ASSERT_TRUE(save(files_, run_, State(step), 1, 0).ok());
  fs::resize_file(ckpt("step-00000030/shard-00000.safetensors"), 50);
  ASSERT_TRUE(save(files_, run_, State(40), 1, 2).ok());
  EXPECT_THAT(names(), UnorderedElementsAre("step-00000020", "step-00000030", "step-00000040", "LATEST"));
}

TEST_F(Checkpoint, NeverRemovesTheOneJustPublished) {
  ASSERT_TRUE(save(files_, run_, State(100), 1, 0).ok());
  ASSERT_TRUE(save(files_, run_, State(50), 1, 1).ok());
  EXPECT_THAT(names(), UnorderedElementsAre("step-00000050", "step-00000100", "LATEST"));
}

TEST_F(Checkpoint, SweepsWhatEarlierAttemptsLeft) {
  ASSERT_TRUE(save(files_, run_, State(10), 1).ok());
  for (const char* name : {".tmp-step-00000020-1", ".tmp-step-00000030-2", ".trash-step-00000005-1"}) {
    fs::create_directory(ckpt(name));
    std::ofstream(ckpt(name) + "/shard-00000.safetensors") << "half";
  }
  std::ofstream(ckpt(".tmp-LATEST-1")) << "half";
  ASSERT_TRUE(save(files_, run_, State(20), 2).ok());
  EXPECT_THAT(names(), UnorderedElementsAre("step-00000010", "step-00000020", "LATEST"));
}

TEST_F(Checkpoint, AnOldAttemptIsFenced) {
  ASSERT_TRUE(save(files_, run_, State(10), 5).ok());
  const auto late = save(files_, run_, State(20), 4).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late.message()), AllOf(HasSubstr("attempt 4"), HasSubstr("step-00000010"), HasSubstr("5")));

  // A newer attempt begins while the old one is writing.
  auto overtaken = CheckpointWriter::create(files_, run_, 20, 5).value();
  fs::create_directory(ckpt(".tmp-step-00000020-6"));
  EXPECT_EQ(overtaken->publish({}, {}).status().code(), absl::StatusCode::kFailedPrecondition);
  overtaken.reset();
  EXPECT_EQ(latest(), 10u);
  fs::remove(ckpt(".tmp-step-00000020-6"));

  // And takes away what the old one has written.
  auto slow = CheckpointWriter::create(files_, run_, 30, 5).value();
  auto newer = CheckpointWriter::create(files_, run_, 30, 6).value();
  EXPECT_FALSE(slow->publish({}, {}).ok());
  slow.reset();
  EXPECT_TRUE(newer->publish({}, {}).ok());
  EXPECT_EQ(latest(), 30u);
}

TEST_F(Checkpoint, AStepSavedTwiceStaysAsItWas) {
  ASSERT_TRUE(save(files_, run_, State(10), 1).ok());
  const auto before = fs::last_write_time(ckpt("step-00000010/manifest.json"));
  const auto again = save(files_, run_, State(10), 2);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->already_there);
  EXPECT_EQ(fs::last_write_time(ckpt("step-00000010/manifest.json")), before);
  EXPECT_THAT(names(), UnorderedElementsAre("step-00000010", "LATEST"));
}

TEST_F(Checkpoint, ADamagedStepIsReplaced) {
  ASSERT_TRUE(save(files_, run_, State(10), 1).ok());
  fs::resize_file(ckpt("step-00000010/shard-00001.safetensors"), 50);
  EXPECT_EQ(latest(), 0u);
  const auto again = save(files_, run_, State(10), 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->already_there);
  EXPECT_EQ(latest(), 10u);
}

TEST_F(Checkpoint, TheHintIsOnlyAHint) {
  ASSERT_TRUE(save(files_, run_, State(10)).ok());
  ASSERT_TRUE(save(files_, run_, State(20)).ok());
  std::ofstream(ckpt("LATEST")) << "step-00000010";
  EXPECT_EQ(latest(), 20u);
  fs::remove(ckpt("LATEST"));
  EXPECT_EQ(latest(), 20u);
}

TEST_F(Checkpoint, ErrorsNameThePath) {
  std::ofstream(root_ + "/file") << "x";
  const auto below_file = save(files_, root_ + "/file/run", State(1)).status();
  EXPECT_THAT(std::string(below_file.message()), HasSubstr(root_ + "/file/run"));
  if (::geteuid() == 0) GTEST_SKIP() << "root writes everywhere";
  fs::create_directories(run_);
  ::chmod(run_.c_str(), 0555);
  const auto denied = save(files_, run_, State(1)).status();
  EXPECT_EQ(denied.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(denied.message()), HasSubstr(run_ + "/ckpt"));
  ::chmod(run_.c_str(), 0755);
}

TEST_F(Checkpoint, AFullDeviceIsNamed) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  const auto status = write_file(files_, "/dev/full", "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("/dev/full"), HasSubstr("No space left on device")));
}

// A process that saves in a loop is killed with SIGKILL at any moment. Afterwards the newest checkpoint is whole, is
// not older than the last one that the process said to have saved, and the next process goes on from it.
TEST_F(Checkpoint, SurvivesKills) {
  std::mt19937_64 random(20);
  uint64_t reached = 0;
  for (uint64_t kill = 1; kill <= 20; ++kill) {
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(told[0]);
      for (uint64_t step = reached + 1;; ++step) {
        const auto saved = save(files_, run_, State(step, 2000), kill, 2);
        if (!saved.ok() || ::write(told[1], &step, sizeof(step)) != sizeof(step)) ::_exit(1);
      }
    }
    ::close(told[1]);
    uint64_t said = reached, step = 0;
    // Waits for some saves, so that every life gets somewhere, then strikes inside the next.
    for (uint64_t saves = random() % 3; saves > 0 && ::read(told[0], &step, sizeof(step)) == sizeof(step); --saves) {
      said = step;
    }
    ::usleep(static_cast<useconds_t>(random() % 8000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed by itself";
    while (::read(told[0], &step, sizeof(step)) == sizeof(step)) said = step;
    ::close(told[0]);

    const auto found = find_latest(files_, run_, Depth::kContents).value();
    EXPECT_THAT(found.skipped, IsEmpty());
    reached = found.checkpoint == nullptr ? 0 : found.checkpoint->manifest().step;
    ASSERT_GE(reached, said);
    ASSERT_LE(reached, said + 1);
    if (reached > 0) {
      ASSERT_TRUE(compare(*found.checkpoint, State(reached, 2000)).ok());
    }
  }
  EXPECT_GT(reached, 10u);
}

}  // namespace
}  // namespace telar::checkpoint
