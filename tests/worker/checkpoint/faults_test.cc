// Crashes at every operation, full disks, bad sectors and damaged files, on a file system that forgets what was not
// synced.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/checkpoint/memory_files.h"
#include "tests/worker/checkpoint/state.h"
#include "worker/checkpoint/run_files.h"

namespace telar::checkpoint {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

// Step of the newest checkpoint, which must be whole; 0 when there is none. No newer one may be there in part.
uint64_t whole_step(MemoryFiles& files) {
  const auto found = find_latest(files, kRun, Depth::kContents).value();
  for (const Skipped& skipped : found.skipped) ADD_FAILURE() << skipped.path << ": " << skipped.why;
  if (found.checkpoint == nullptr) return 0;
  const uint64_t step = found.checkpoint->manifest().step;
  EXPECT_TRUE(compare(*found.checkpoint, State(step)).ok());
  return step;
}

// Operations of saving step 20 with one older checkpoint kept and one removed.
int64_t operations_of_a_save() {
  MemoryFiles files;
  EXPECT_TRUE(save(files, kRun, State(5), 1).ok());
  EXPECT_TRUE(save(files, kRun, State(10), 1).ok());
  files.plan(MemoryFiles::Fault::kNone, 0);
  EXPECT_TRUE(save(files, kRun, State(20), 2, 2).ok());
  return files.operations();
}

TEST(PowerCut, AtEveryOperationLeavesTheOldOrTheNew) {
  const int64_t operations = operations_of_a_save();
  ASSERT_GT(operations, 25);
  std::set<uint64_t> seen;
  for (int64_t at = 0; at <= operations; ++at) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(testing::Message() << "cut at operation " << at << ", restart " << seed);
      MemoryFiles files;
      ASSERT_TRUE(save(files, kRun, State(5), 1).ok());
      ASSERT_TRUE(save(files, kRun, State(10), 1).ok());
      files.plan(MemoryFiles::Fault::kPowerCut, at);
      const auto saved = save(files, kRun, State(20), 2, 2);
      std::mt19937_64 random(seed);
      files.restart(seed == 0 ? nullptr : &random);  // Seed 0: the least that could have survived.
      const uint64_t step = whole_step(files);
      ASSERT_THAT(step, AnyOf(10u, 20u));
      if (saved.ok()) {
        ASSERT_EQ(step, 20u) << "said to be saved, and lost";
      }
      seen.insert(step);
      // Nor does an old one that was being removed come back in part.
      for (const Published& published : list_published(files, kRun).value_or(std::vector<Published>())) {
        const auto reader = CheckpointReader::open(files, published.path);
        ASSERT_TRUE(reader.ok()) << reader.status();
        ASSERT_TRUE((*reader)->verify().ok());
      }
      // The next attempt saves over whatever is left.
      const auto next = save(files, kRun, State(30), 3, 2);
      ASSERT_TRUE(next.ok()) << next.status();
      ASSERT_THAT(next->warnings, IsEmpty());
      const auto names = files.list(checkpoints_dir(kRun)).value();
      ASSERT_THAT(names, Each(Not(StartsWith("."))));
      files.restart(nullptr);
      ASSERT_EQ(whole_step(files), 30u);
    }
  }
  EXPECT_EQ(seen.size(), 2u);
}

TEST(PowerCut, OfTheFirstSaveLeavesNothingOrAll) {
  for (int64_t at = 0;; ++at) {
    MemoryFiles files;
    files.plan(MemoryFiles::Fault::kPowerCut, at);
    const auto saved = save(files, kRun, State(1));
    if (saved.ok() && files.operations() <= at) break;
    files.restart(nullptr);
    ASSERT_THAT(whole_step(files), AnyOf(0u, 1u));
    if (saved.ok()) {
      ASSERT_EQ(whole_step(files), 1u);
    }
  }
}

// A disk that fills up, and a device that fails once, at each operation in turn.
TEST(Faults, AFailedSaveNamesThePathAndLeavesTheOldAsItWas) {
  const int64_t operations = operations_of_a_save();
  for (const auto fault : {MemoryFiles::Fault::kDiskFull, MemoryFiles::Fault::kIoError}) {
    int failures = 0;
    for (int64_t at = 0; at < operations; ++at) {
      SCOPED_TRACE(at);
      MemoryFiles files;
      ASSERT_TRUE(save(files, kRun, State(5), 1).ok());
      ASSERT_TRUE(save(files, kRun, State(10), 1).ok());
      files.plan(fault, at);
      const auto saved = save(files, kRun, State(20), 2, 2);
      files.plan(MemoryFiles::Fault::kNone, 0);
      if (saved.ok()) {
        ASSERT_EQ(whole_step(files), 20u);
      } else {
        ++failures;
        EXPECT_THAT(std::string(saved.status().message()), HasSubstr("/runs/one/ckpt"));
        const uint64_t step = whole_step(files);
        ASSERT_THAT(step, AnyOf(10u, 20u));
        if (step == 20) {
          EXPECT_THAT(std::string(saved.status().message()), HasSubstr("fsync /runs/one/ckpt:"));
        }
        if (fault == MemoryFiles::Fault::kDiskFull) {
          const auto names = files.list(checkpoints_dir(kRun)).value();
          EXPECT_THAT(names, Each(Not(StartsWith(".tmp"))));
        }
        EXPECT_TRUE(CheckpointReader::open(files, "/runs/one/ckpt/step-00000005").ok());
      }
      ASSERT_TRUE(save(files, kRun, State(30), 2, 2).ok());
      ASSERT_EQ(whole_step(files), 30u);
    }
    EXPECT_GT(failures, 15);
  }
}

TEST(Faults, TroubleAfterPublishingIsAWarning) {
  const int64_t operations = operations_of_a_save();
  std::set<std::string> warned;
  for (int64_t at = 0; at < operations; ++at) {
    MemoryFiles files;
    ASSERT_TRUE(save(files, kRun, State(5), 1).ok());
    ASSERT_TRUE(save(files, kRun, State(10), 1).ok());
    files.plan(MemoryFiles::Fault::kIoError, at);
    const auto saved = save(files, kRun, State(20), 2, 2);
    if (!saved.ok()) continue;
    ASSERT_EQ(saved->warnings.size(), 1u);
    warned.insert(std::string(saved->warnings[0].message()));
  }
  EXPECT_GT(warned.size(), 6u);  // LATEST: create, write, fsync, close, rename; the old one: rename, unlinks, rmdir.
}

class Damage : public testing::Test {
 protected:
  Damage() {
    EXPECT_TRUE(save(files_, kRun, State(10)).ok());
    EXPECT_TRUE(save(files_, kRun, State(20)).ok());
    names_ = files_.all_files(newest_);
  }
  // Expects step 20 to be passed over, with a reason that names the file or one of its tensors.
  void expect_fallback(const std::string& file) {
    const auto found = find_latest(files_, kRun, Depth::kContents).value();
    ASSERT_EQ(found.skipped.size(), 1u);
    EXPECT_EQ(found.skipped[0].path, newest_);
    EXPECT_EQ(found.skipped[0].why.code(), absl::StatusCode::kDataLoss) << found.skipped[0].why;
    EXPECT_THAT(std::string(found.skipped[0].why.message()), HasSubstr(file));
    ASSERT_NE(found.checkpoint, nullptr);
    ASSERT_TRUE(compare(*found.checkpoint, State(10)).ok());
  }
  MemoryFiles files_;
  const std::string newest_ = std::string(kRun) + "/ckpt/step-00000020";
  std::vector<std::string> names_;
};

TEST_F(Damage, EveryFlippedBitIsFound) {
  ASSERT_EQ(names_.size(), 4u);
  std::mt19937_64 random(3);
  for (const std::string& name : names_) {
    std::string* bytes = files_.bytes(name);
    for (size_t at = 0; at < bytes->size(); at += 1 + random() % 3) {
      SCOPED_TRACE(testing::Message() << name << " byte " << at);
      const char before = (*bytes)[at];
      (*bytes)[at] = static_cast<char>(before ^ (1 << (random() % 8)));
      expect_fallback(name);
      (*bytes)[at] = before;
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(whole_step(files_), 20u);
}

TEST_F(Damage, EveryCutIsFound) {
  std::mt19937_64 random(4);
  for (const std::string& name : names_) {
    const std::string before = *files_.bytes(name);
    for (size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, random() % before.size(), before.size() - 1}) {
      SCOPED_TRACE(testing::Message() << name << " cut to " << size);
      files_.bytes(name)->resize(size);
      expect_fallback(name);
      *files_.bytes(name) = before;
    }
    *files_.bytes(name) += "x";
    expect_fallback(name);
    *files_.bytes(name) = before;
  }
}

TEST_F(Damage, AMissingFileIsFound) {
  for (const std::string& name : names_) {
    const std::string before = *files_.bytes(name);
    ASSERT_TRUE(files_.remove_file(name).ok());
    const auto found = find_latest(files_, kRun, Depth::kManifest).value();
    ASSERT_EQ(found.skipped.size(), 1u);
    EXPECT_THAT(std::string(found.skipped[0].why.message()), HasSubstr(name));
    EXPECT_EQ(found.checkpoint->manifest().step, 10u);
    ASSERT_TRUE(write_file(files_, name, before).ok());
  }
}

TEST_F(Damage, TensorBytesAreNamedByTensor) {
  const auto reader = CheckpointReader::open(files_, newest_).value();
  const TensorEntry& tensor = *reader->manifest().find("wte", TensorKind::kExpAvg);
  std::string* bytes = files_.bytes(newest_ + "/" + tensor.chunks[0].file);
  const std::string data(reinterpret_cast<const char*>(State(20).tensors[3].data.data()), 120);
  const size_t at = bytes->find(data);
  ASSERT_NE(at, std::string::npos);
  (*bytes)[at + 100] ^= 4;
  const auto damaged = CheckpointReader::open(files_, newest_);
  ASSERT_TRUE(damaged.ok()) << "opening does not read tensors";
  const std::string range = "bytes [" + std::to_string(at) + ", " + std::to_string(at + 120) + ")";
  std::vector<std::byte> out(120), part(4);
  for (const absl::Status& status : {(*damaged)->verify(), (*damaged)->read("wte", TensorKind::kExpAvg, out),
                                     (*damaged)->read_range("wte", TensorKind::kExpAvg, 3, 1, part)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("exp_avg wte, " + range));
  }
  EXPECT_TRUE((*damaged)->read("wte", TensorKind::kMaster, out).ok());
}

TEST_F(Damage, ADirectoryUnderAnotherNameIsRefused) {
  ASSERT_TRUE(files_.rename(newest_, std::string(kRun) + "/ckpt/step-00000099").ok());
  const auto found = find_latest(files_, kRun, Depth::kContents).value();
  ASSERT_EQ(found.skipped.size(), 1u);
  EXPECT_THAT(std::string(found.skipped[0].why.message()), HasSubstr("is of step 20"));
  EXPECT_EQ(found.checkpoint->manifest().step, 10u);
}

}  // namespace
}  // namespace telar::checkpoint
