// Several ranks that save one checkpoint, and what becomes of it when one of them fails, dies, dawdles or lies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <thread>

#include "tests/worker/checkpoint/memory_files.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/run_files.h"

namespace telar::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::UnorderedElementsAre;

constexpr int kRanks = 4;
constexpr int64_t kRows = 8, kColumns = 5;

// The files as one process sees them. It may fail once, or die: then nothing of what it does has an effect any more.
class RankFiles : public FileSystem {
 public:
  enum class Fault { kNone, kFails, kDies };
  explicit RankFiles(FileSystem& files) : files_(files) {}
  void plan(Fault fault, int64_t at) { fault_ = fault, at_ = at, operations_ = 0; }
  int64_t operations() const { return operations_; }
  // Called before the operation of that number.
  std::function<void(int64_t)> before;

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    if (auto status = strike("create " + path); !status.ok()) return status;
    auto file = files_.create(path);
    if (!file.ok()) return file;
    return std::make_unique<Writable>(*this, *std::move(file), path);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    return dead() ? death() : files_.open(path);
  }
  absl::StatusOr<std::vector<std::string>> list(const std::string& directory) override {
    return dead() ? death() : files_.list(directory);
  }
  absl::Status make_directory(const std::string& path) override {
    auto status = strike("mkdir " + path);
    return status.ok() ? files_.make_directory(path) : status;
  }
  absl::Status sync_directory(const std::string& path) override {
    auto status = strike("fsync " + path);
    return status.ok() ? files_.sync_directory(path) : status;
  }
  absl::Status rename(const std::string& from, const std::string& to) override {
    auto status = strike("rename " + from);
    return status.ok() ? files_.rename(from, to) : status;
  }
  absl::Status remove_file(const std::string& path) override {
    auto status = strike("unlink " + path);
    return status.ok() ? files_.remove_file(path) : status;
  }
  absl::Status remove_directory(const std::string& path) override {
    auto status = strike("rmdir " + path);
    return status.ok() ? files_.remove_directory(path) : status;
  }
  void await_change(const std::string& directory, milliseconds most) override { files_.await_change(directory, most); }
  std::chrono::steady_clock::time_point now() override { return files_.now(); }

 private:
  class Writable : public WritableFile {
   public:
    Writable(RankFiles& files, std::unique_ptr<WritableFile> inner, std::string path)
        : files_(files), inner_(std::move(inner)), path_(std::move(path)) {}
    absl::Status append(std::span<const std::byte> bytes) override {
      auto status = files_.strike("write " + path_);
      return status.ok() ? inner_->append(bytes) : status;
    }
    absl::Status sync() override {
      auto status = files_.strike("fsync " + path_);
      return status.ok() ? inner_->sync() : status;
    }
    absl::Status close() override {
      auto status = files_.strike("close " + path_);
      return status.ok() ? inner_->close() : status;
    }

   private:
    RankFiles& files_;
    const std::unique_ptr<WritableFile> inner_;
    const std::string path_;
  };
  bool dead() const { return fault_ == Fault::kDies && operations_ > at_; }
  static absl::Status death() { return absl::UnavailableError("dead"); }
  absl::Status strike(const std::string& what) {
    if (before) before(operations_);
    const int64_t operation = operations_++;
    if (dead()) return death();
    if (fault_ == Fault::kFails && operation == at_) return absl::DataLossError(what + ": Input/output error");
    return absl::OkStatus();
  }

  FileSystem& files_;
  Fault fault_ = Fault::kNone;
  int64_t at_ = 0;
  int64_t operations_ = 0;
};

float element(uint64_t step, int64_t index) { return static_cast<float>(1000 * step) + static_cast<float>(index); }

class PeersTest : public testing::Test {
 protected:
  PeersTest() {
    for (int rank = 0; rank < kRanks; ++rank) rank_files_.push_back(std::make_unique<RankFiles>(files_));
  }

  struct Save {
    uint64_t step = 20, attempt = 2;
    uint32_t keep = 0;
    std::vector<int64_t> rows = {0, 2, 4, 6, kRows};     // Rank r has the rows [r, r + 1) of these.
    std::function<void(int, CheckpointWriter&)> tamper;  // Adds more.
  };

  // Each rank writes two of a tensor's rows in a shard of each; rank 3 has a tensor of its own, too.
  absl::StatusOr<PublishResult> save_rank(const Save& save, int rank) {
    auto writer = CheckpointWriter::create(*rank_files_[static_cast<size_t>(rank)], kRun, save.step, save.attempt,
                                           /*shard_bytes=*/20, {rank, kRanks, std::chrono::seconds(90)});
    if (!writer.ok()) return writer.status();
    if (rank == 0) {
      (*writer)->expect({{.name = "wte", .kind = TensorKind::kMaster, .shape = {kRows, kColumns}},
                         {.name = "norm", .kind = TensorKind::kMaster, .shape = {kColumns}}});
    }
    const auto at = static_cast<size_t>(rank);
    for (int64_t row = save.rows[at]; row < save.rows[at + 1]; ++row) {
      if (auto status = (*writer)->add(row_of(save.step, row)); !status.ok()) return status;
    }
    if (rank == 3) {
      TensorPart norm{.name = "norm", .kind = TensorKind::kMaster, .shape = {kColumns}};
      norm.read = row_of(save.step, 100).read;
      if (auto status = (*writer)->add(norm); !status.ok()) return status;
    }
    if (save.tamper) save.tamper(rank, **writer);
    return (*writer)->publish({.job = "projects/p/jobs/j"}, {.keep = save.keep});
  }

  static TensorPart row_of(uint64_t step, int64_t row) {
    TensorPart part{.name = "wte", .kind = TensorKind::kMaster, .shape = {kRows, kColumns}};
    part.offset = {row, 0};
    part.extent = {1, kColumns};
    part.read = [step, row](uint64_t first_byte, std::span<std::byte> out) {
      auto* values = reinterpret_cast<float*>(out.data());
      const auto first = static_cast<int64_t>(first_byte / sizeof(float));
      for (size_t i = 0; i < out.size() / sizeof(float); ++i) {
        values[i] = element(step, row * kColumns + first + static_cast<int64_t>(i));
      }
      return absl::OkStatus();
    };
    return part;
  }

  std::vector<absl::StatusOr<PublishResult>> save_all(const Save& save) {
    return together([&](int rank) { return save_rank(save, rank); });
  }

  // What each rank says, all at once.
  template <typename Body>
  std::vector<absl::StatusOr<PublishResult>> together(Body body) {
    std::vector<absl::StatusOr<PublishResult>> results(kRanks, absl::UnknownError("did not run"));
    std::vector<std::thread> threads;
    files_.play_time(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        results[static_cast<size_t>(rank)] = body(rank);
        files_.leave();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  void expect_saved(const Save& save) {
    for (const auto& result : save_all(save)) ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(whole_step(), save.step);
  }

  // Step of the newest checkpoint, which must be whole, as must be all others; 0 when there is none.
  uint64_t whole_step() {
    const auto found = find_latest(files_, kRun, Depth::kContents).value();
    for (const Skipped& skipped : found.skipped) ADD_FAILURE() << skipped.path << ": " << skipped.why;
    if (found.checkpoint == nullptr) return 0;
    const uint64_t step = found.checkpoint->manifest().step;
    std::vector<float> wte(kRows * kColumns), norm(kColumns);
    const auto bytes = [](std::vector<float>& values) { return std::as_writable_bytes(std::span(values)); };
    EXPECT_TRUE(found.checkpoint->read("wte", TensorKind::kMaster, bytes(wte)).ok());
    EXPECT_TRUE(found.checkpoint->read("norm", TensorKind::kMaster, bytes(norm)).ok());
    for (size_t i = 0; i < wte.size(); ++i) EXPECT_EQ(wte[i], element(step, static_cast<int64_t>(i)));
    for (size_t i = 0; i < norm.size(); ++i)
      EXPECT_EQ(norm[i], element(step, 100 * kColumns + static_cast<int64_t>(i)));
    return step;
  }

  // What a failed save leaves is taken away by the next life of the job before its ranks start.
  void next_life() {
    std::vector<absl::Status> trouble;
    ASSERT_TRUE(sweep(files_, kRun, 2, trouble).ok());
    ASSERT_THAT(names(), Each(Not(StartsWith("."))));
  }

  std::vector<std::string> names() { return files_.list(checkpoints_dir(kRun)).value(); }
  static std::string message(const absl::StatusOr<PublishResult>& result) {
    return std::string(result.status().message());
  }
  RankFiles& of_rank(int rank) { return *rank_files_[static_cast<size_t>(rank)]; }
  // Operations of one rank in a save that goes well.
  int64_t operations_of(int rank) {
    of_rank(rank).plan(RankFiles::Fault::kNone, 0);
    expect_saved({.step = 15, .attempt = 1});
    return of_rank(rank).operations();
  }

  MemoryFiles files_;
  std::vector<std::unique_ptr<RankFiles>> rank_files_;
};

TEST_F(PeersTest, OneCheckpointOfAllParts) {
  const auto results = save_all({});
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->path, "/runs/one/ckpt/step-00000020");
    EXPECT_EQ(result->bytes, results[0]->bytes);
  }
  EXPECT_EQ(whole_step(), 20u);
  EXPECT_THAT(names(), UnorderedElementsAre("step-00000020", "LATEST"));
  EXPECT_THAT(files_.list("/runs/one/ckpt/step-00000020").value(),
              UnorderedElementsAre("manifest.json", "shard-r00000-00000.safetensors", "shard-r00000-00001.safetensors",
                                   "shard-r00001-00000.safetensors", "shard-r00001-00001.safetensors",
                                   "shard-r00002-00000.safetensors", "shard-r00002-00001.safetensors",
                                   "shard-r00003-00000.safetensors", "shard-r00003-00001.safetensors",
                                   "shard-r00003-00002.safetensors"));
  const auto reader = CheckpointReader::open(files_, results[0]->path).value();
  EXPECT_EQ(reader->manifest().tensors[0].name, "wte");
  std::set<std::string> keys;
  for (const Chunk& chunk : reader->manifest().tensors[0].chunks) keys.insert(chunk.key);
  EXPECT_THAT(keys, testing::IsSupersetOf({"master/wte#0.0", "master/wte#3.1"}));
  EXPECT_EQ(keys.size(), 8u);
}

TEST_F(PeersTest, SaveAfterSaveWithRetention) {
  for (uint64_t step = 1; step <= 20; ++step) expect_saved({.step = step, .keep = 2});
  EXPECT_THAT(names(), UnorderedElementsAre("step-00000019", "step-00000020", "LATEST"));
  // A step once more stays as it was.
  const auto again = save_all({.step = 20});
  for (const auto& result : again) ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(again[0]->already_there);
  EXPECT_EQ(whole_step(), 20u);
}

// A rank whose write fails says so: nobody waits for a deadline, nothing is published, and all know whose fault it is.
TEST_F(PeersTest, AFailingRankIsNamedByAll) {
  for (const int bad : {1, 3}) {
    const int64_t operations = operations_of(bad);
    ASSERT_GT(operations, 12);
    int failures = 0;
    for (int64_t at = 0; at < operations; ++at) {
      SCOPED_TRACE(testing::Message() << "rank " << bad << ", operation " << at);
      of_rank(bad).plan(RankFiles::Fault::kFails, at);
      const auto results = save_all({});
      of_rank(bad).plan(RankFiles::Fault::kNone, 0);
      if (results[0].ok()) {  // Only the last, with which the rank takes leave, does not matter.
        EXPECT_EQ(at, operations - 1);
        ASSERT_EQ(whole_step(), 20u);
        ASSERT_TRUE(discard(files_, results[0]->path, 1).ok());
        next_life();
        continue;
      }
      ++failures;
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto& result = results[static_cast<size_t>(rank)];
        ASSERT_FALSE(result.ok()) << "rank " << rank;
        EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss) << result.status();
        EXPECT_THAT(message(result), HasSubstr("Input/output error"));
        if (rank != bad) {
          EXPECT_THAT(message(result), HasSubstr("rank " + std::to_string(bad) + ": "));
        }
      }
      ASSERT_EQ(whole_step(), 15u);
      EXPECT_THAT(names(), Each(Not(StartsWith(".tmp"))));
      next_life();
    }
    EXPECT_GT(failures, 10);
  }
  expect_saved({.step = 30});
  EXPECT_THAT(names(), Each(Not(StartsWith("."))));
}

// The word that it is published needs no space by then. Else the others would wait for it for long.
TEST_F(PeersTest, OnAFullDiskWhatIsPublishedIsHeardByAll) {
  files_.plan(MemoryFiles::Fault::kNone, 0);
  expect_saved({.step = 15, .attempt = 1});
  const int64_t operations = files_.operations();
  int published = 0;
  for (int64_t at = operations / 2; at <= operations; ++at) {
    SCOPED_TRACE(at);
    files_.plan(MemoryFiles::Fault::kDiskFull, at);
    const auto results = save_all({});
    files_.plan(MemoryFiles::Fault::kNone, 0);
    ASSERT_EQ(whole_step(), results[0].ok() ? 20u : 15u);
    for (const auto& result : results) EXPECT_EQ(result.ok(), results[0].ok()) << result.status();
    published += results[0].ok();
    // Who waits in vain waits for one that knows.
    const auto any = [&](auto is) {
      return std::any_of(results.begin(), results.end(), [&](const auto& result) { return is(result.status()); });
    };
    EXPECT_TRUE(!any([](const absl::Status& status) { return absl::IsDeadlineExceeded(status); }) || any(untold));
    if (results[0].ok()) {
      ASSERT_TRUE(discard(files_, results[0]->path, 1).ok());
    }
    next_life();
  }
  EXPECT_GT(published, 5);
}

// The manifest does not fit, and fills the disk to its last byte: there is no room for the news, until rank 0 has taken
// the checkpoint's files away and tells again.
TEST_F(PeersTest, OnAFullDiskAFailureIsToldOnceItsFilesAreGone) {
  expect_saved({.step = 15, .attempt = 1});
  expect_saved({.step = 20});
  const uint64_t whole = files_.most_used();
  ASSERT_TRUE(discard(files_, checkpoints_dir(kRun) + "/" + step_name(20), 1).ok());
  for (const uint64_t missing : {100, 200, 300, 500, 700, 900}) {
    SCOPED_TRACE(missing);
    files_.set_space(whole - missing);
    const auto results = save_all({});
    files_.set_space(UINT64_MAX);
    EXPECT_TRUE(absl::IsResourceExhausted(results[0].status())) << results[0].status();
    EXPECT_THAT(message(results[0]), HasSubstr("manifest.json"));
    for (const auto& result : results) {
      EXPECT_THAT(message(result), HasSubstr("No space left on device"));
      EXPECT_FALSE(untold(result.status()));
    }
    ASSERT_EQ(whole_step(), 15u);
    next_life();
  }
}

TEST_F(PeersTest, AFailingRankZeroIsHeardByAll) {
  const int64_t operations = operations_of(0);
  int failures = 0;
  for (int64_t at = 0; at < operations; ++at) {
    SCOPED_TRACE(at);
    of_rank(0).plan(RankFiles::Fault::kFails, at);
    const auto results = save_all({.step = 20 + static_cast<uint64_t>(at)});
    of_rank(0).plan(RankFiles::Fault::kNone, 0);
    const uint64_t step = whole_step();
    for (int rank = 1; rank < kRanks; ++rank) {
      const auto& result = results[static_cast<size_t>(rank)];
      if (result.ok()) {
        EXPECT_EQ(step, 20u + static_cast<uint64_t>(at));
      }
      if (!results[0].ok()) {
        EXPECT_FALSE(result.ok());
      }
    }
    failures += !results[0].ok();
    const auto all = list_published(files_, kRun).value();
    for (const Published& published : all) {
      if (published.step != 15) {
        ASSERT_TRUE(discard(files_, published.path, 1).ok());
      }
    }
  }
  EXPECT_GT(failures, 10);
  expect_saved({.step = 300});
  EXPECT_THAT(names(), Each(Not(StartsWith("."))));
}

TEST_F(PeersTest, ADeadRankEndsInADeadlineThatNamesIt) {
  const int64_t operations = operations_of(2);
  bool published = false;
  for (int64_t at = 0; at < operations; ++at) {
    SCOPED_TRACE(at);
    of_rank(2).plan(RankFiles::Fault::kDies, at);
    const auto results = save_all({});
    of_rank(2).plan(RankFiles::Fault::kNone, 0);
    if (results[0].ok()) {  // It had handed in its part.
      published = true;
      ASSERT_EQ(whole_step(), 20u);
      ASSERT_TRUE(discard(files_, results[0]->path, 1).ok());
      continue;
    }
    EXPECT_FALSE(published);
    ASSERT_EQ(whole_step(), 15u);
    EXPECT_EQ(results[0].status().code(), absl::StatusCode::kDeadlineExceeded) << results[0].status();
    EXPECT_THAT(message(results[0]), HasSubstr("rank 2 of 4 did not write within 90 s"));
    for (const int rank : {1, 3}) EXPECT_FALSE(results[static_cast<size_t>(rank)].ok());
    EXPECT_THAT(names(), Each(Not(StartsWith(".tmp"))));
    next_life();
  }
  EXPECT_TRUE(published);
  expect_saved({.step = 30, .attempt = 3});
  EXPECT_THAT(names(), Each(Not(StartsWith("."))));
}

TEST_F(PeersTest, ADeadRankZeroEndsInADeadlineForAll) {
  const int64_t operations = operations_of(0);
  std::set<uint64_t> seen;
  for (int64_t at = 0; at < operations; ++at) {
    SCOPED_TRACE(at);
    const uint64_t step = 20 + static_cast<uint64_t>(at);
    of_rank(0).plan(RankFiles::Fault::kDies, at);
    const auto results = save_all({.step = step, .attempt = 2});
    of_rank(0).plan(RankFiles::Fault::kNone, 0);
    const uint64_t newest = whole_step();
    ASSERT_THAT(newest, AnyOf(15u, step));
    seen.insert(newest);
    for (const auto& result : results) {
      if (result.ok()) {
        EXPECT_EQ(newest, step);
      }
      if (!result.ok() && newest == 15) {
        EXPECT_THAT(message(result), AnyOf(HasSubstr("rank 0"), HasSubstr("dead")));
      }
    }
    if (newest != 15) {
      ASSERT_TRUE(discard(files_, "/runs/one/ckpt/" + step_name(newest), 1).ok());
    }
    next_life();
  }
  EXPECT_GT(seen.size(), 1u);
  expect_saved({.step = 300, .attempt = 3});
}

// The power of the machine with the files is cut at each operation in turn, whoever does it.
TEST(Peers, APowerCutLeavesTheOldOrTheNew) {
  class Cut : public PeersTest {
   public:
    void TestBody() override {}
    void run(int64_t at, uint64_t seed) {
      expect_saved({.step = 10, .attempt = 1});
      files_.plan(MemoryFiles::Fault::kPowerCut, at);
      const auto results = save_all({});
      std::mt19937_64 random(seed);
      files_.restart(seed == 0 ? nullptr : &random);
      const uint64_t step = whole_step();
      ASSERT_THAT(step, AnyOf(10u, 20u));
      for (const auto& result : results) {
        if (result.ok()) {
          ASSERT_EQ(step, 20u) << "said to be saved, and lost";
        }
      }
      expect_saved({.step = 30, .attempt = 3});
      ASSERT_THAT(names(), Each(Not(StartsWith("."))));
    }
  };
  for (int64_t at = 0; at < 110; ++at) {
    SCOPED_TRACE(at);
    Cut().run(at, static_cast<uint64_t>(at % 3));
    if (testing::Test::HasFailure()) return;
  }
}

TEST_F(PeersTest, WhatIsThereTwiceOrNotAtAllIsNamed) {
  const auto refused = [&](const Save& save) {
    const auto results = save_all(save);
    for (const auto& result : results) EXPECT_FALSE(result.ok());
    EXPECT_EQ(message(results[1]), "checkpoint /runs/one/ckpt/step-00000020 is not published: " + message(results[0]));
    EXPECT_EQ(whole_step(), 0u);
    EXPECT_THAT(names(), Each(Not(StartsWith(".tmp"))));
    next_life();
    return message(results[0]);
  };
  EXPECT_THAT(refused({.rows = {0, 2, 4, 6, 7}}), HasSubstr("master wte has chunks of 140 bytes, but is 160"));
  Save twice;
  twice.tamper = [](int rank, CheckpointWriter& writer) {
    if (rank == 2) {
      EXPECT_TRUE(writer.add(row_of(20, 3)).ok());
    }
  };
  EXPECT_THAT(refused(twice), AllOf(HasSubstr("master wte has chunks"), HasSubstr("overlap"), HasSubstr("shard-r00001"),
                                    HasSubstr("shard-r00002")));
  const auto adds = [&](TensorPart part) {
    Save save;
    save.tamper = [part](int rank, CheckpointWriter& writer) {
      if (rank == 1) {
        EXPECT_TRUE(writer.add(part).ok());
      }
    };
    return save;
  };
  const std::vector<std::byte> bytes(20);
  EXPECT_THAT(refused(adds({.name = "wpe", .kind = TensorKind::kMaster, .shape = {5}, .data = bytes})),
              HasSubstr("rank 1: master wpe is no tensor of the checkpoint"));
  EXPECT_THAT(refused(adds({.name = "norm", .kind = TensorKind::kMaster, .shape = {1, 5}, .data = bytes})),
              HasSubstr("rank 1: master norm has another dtype, shape"));
  expect_saved({.step = 30});
}

TEST_F(PeersTest, ADeviceThatCannotBeReadIsSaid) {
  Save save;
  save.tamper = [](int rank, CheckpointWriter& writer) {
    TensorPart part{.name = "x", .kind = TensorKind::kMaster, .shape = {5}};
    part.read = [](uint64_t, std::span<std::byte>) { return absl::InternalError("device: lost"); };
    if (rank == 2) {
      EXPECT_TRUE(writer.add(part).ok());
    }
  };
  const auto results = save_all(save);
  EXPECT_EQ(message(results[2]), "device: lost");
  EXPECT_EQ(message(results[0]), "rank 2: device: lost");
  EXPECT_THAT(message(results[1]), HasSubstr("rank 2: device: lost"));
}

TEST_F(PeersTest, AWriterThatGivesUpIsSaid) {
  const auto results = together([&](int rank) -> absl::StatusOr<PublishResult> {
    if (rank != 3) return save_rank({}, rank);
    const auto left = CheckpointWriter::create(of_rank(3), kRun, 20, 2, 20, {3, kRanks}).status();
    return left.ok() ? absl::CancelledError("left") : left;
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(message(results[static_cast<size_t>(rank)]), AllOf(HasSubstr("rank 3: "), HasSubstr("given up")));
  }
}

TEST_F(PeersTest, AnOldAttemptIsFencedWhileItWrites) {
  // Before any of rank 1's operations a newer attempt begins, sweeps, and stays.
  const int64_t operations = operations_of(1);
  for (int64_t at = 1; at < operations - 1; ++at) {
    SCOPED_TRACE(at);
    std::unique_ptr<CheckpointWriter> newer;
    of_rank(1).plan(RankFiles::Fault::kNone, 0);
    of_rank(1).before = [&](int64_t operation) {
      if (operation == at) newer = CheckpointWriter::create(files_, kRun, 20, 3).value();
    };
    const auto results = save_all({.step = 20, .attempt = 2});
    of_rank(1).before = nullptr;
    ASSERT_NE(newer, nullptr);
    for (const auto& result : results) EXPECT_FALSE(result.ok());
    newer.reset();
    ASSERT_EQ(whole_step(), 15u);
  }
  // It does not even begin, and says so to all at once.
  const auto newer = CheckpointWriter::create(files_, kRun, 20, 3).value();
  for (const auto& result : save_all({.step = 20, .attempt = 2})) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(message(result), HasSubstr("attempt 2 may not save"));
  }
}

}  // namespace
}  // namespace telar::checkpoint
