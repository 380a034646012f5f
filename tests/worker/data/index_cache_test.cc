#include "worker/data/index_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <filesystem>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/data/shard_files.h"
#include "tests/worker/data/temp_dir.h"
#include "worker/data/index_format.h"
#include "worker/data/sharded_source.h"
#include "worker/data/split.h"

namespace telar::data {
namespace {

namespace fs = std::filesystem;
using Numbers = std::vector<uint64_t>;

class IndexCacheTest : public ::testing::Test {
 protected:
  // The answer, and whether it was worked out.
  std::pair<Numbers, bool> ask(const IndexCache& cache, const std::string& what = "lengths") {
    bool worked = false;
    const auto numbers = cache.numbers(files_, what, [&]() -> absl::StatusOr<Numbers> {
      worked = true;
      Numbers sizes;
      for (const std::string& file : files_) sizes.push_back(contents(file)[0]);
      return sizes;
    });
    EXPECT_TRUE(numbers.ok()) << numbers.status();
    return {numbers.value_or(Numbers()), worked};
  }
  std::vector<std::string> indexes() const {
    std::vector<std::string> names;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(dir_.file("index"), none)) names.push_back(entry.path());
    return names;
  }
  // As if they had been made so long ago, or in times to come.
  static void age(const std::string& path, int64_t seconds) {
    struct stat about {};
    ASSERT_EQ(::stat(path.c_str(), &about), 0);
    const timespec times[] = {about.st_atim, {about.st_mtim.tv_sec - seconds, about.st_mtim.tv_nsec}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  void let_indexes_be_younger() const {
    for (const std::string& path : indexes()) age(path, -10);
  }

  TempDir dir_;
  std::vector<std::string> files_ = {dir_.write("a.bin", std::string(100'000, 'a')), dir_.write("b.bin", "b")};
  const IndexCache cache_{dir_.file("index"), "0-"};
};

TEST_F(IndexCacheTest, WorksOnceUntilAFileChanges) {
  const Numbers answer = {'a', 'b'};
  EXPECT_EQ(ask(cache_), std::pair(answer, true));
  let_indexes_be_younger();
  EXPECT_EQ(ask(cache_), std::pair(answer, false));
  EXPECT_EQ(ask({dir_.file("index"), ""}), std::pair(answer, false));
  EXPECT_EQ(ask(cache_, "another question"), std::pair(answer, true));
  // Other bytes under the same size and time of modification.
  struct stat before {};
  ASSERT_EQ(::stat(files_[1].c_str(), &before), 0);
  dir_.write("b.bin", "c");
  const timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, files_[1].c_str(), times, 0), 0);
  EXPECT_EQ(ask(cache_), std::pair(Numbers({'a', 'c'}), true));
  std::swap(files_[0], files_[1]);
  EXPECT_EQ(ask(cache_), std::pair(Numbers({'c', 'a'}), true));
}

// What was written within a tick of the data's own change may be of what was there before.
TEST_F(IndexCacheTest, AnIndexAsOldAsItsDataIsNotTrusted) {
  ask(cache_);
  EXPECT_TRUE(ask(cache_).second);
}

TEST_F(IndexCacheTest, ADamagedIndexIsMadeAgain) {
  ask(cache_);
  ASSERT_EQ(indexes().size(), 1u);
  const std::string path = indexes()[0], good = contents(path);
  ASSERT_EQ(good.size(), kIndexHeaderBytes + 16);
  for (size_t cut = 0; cut <= good.size(); ++cut) {
    std::string bad = good.substr(0, cut);
    if (cut == good.size()) bad[cut - 1] ^= 1;
    dir_.write("index/" + fs::path(path).filename().string(), bad);
    let_indexes_be_younger();
    EXPECT_TRUE(ask(cache_).second) << cut;
    EXPECT_EQ(contents(path), good) << cut;
  }
}

TEST_F(IndexCacheTest, WithoutAPlaceToWriteItWorksEachTime) {
  dir_.write("index", "a file in the way");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ask(cache_), std::pair(Numbers({'a', 'b'}), true));
  ask(IndexCache(dir_.file("other"), ""));
  EXPECT_FALSE(fs::exists(dir_.file("other"))) << "one that only reads";
  EXPECT_TRUE(ask(IndexCache()).second);
}

TEST_F(IndexCacheTest, DocumentsAndWhatIsHeldOutComeBackTheSame) {
  std::vector<std::vector<int32_t>> documents;
  for (int i = 0; i < 400; ++i) documents.push_back({i % 7, i, 256});
  write_megatron(dir_.file(""), "m", 2, documents);
  auto shard = create_llmc_shard(dir_.file(""), "l", 2).value();
  for (const auto& document : documents) ASSERT_TRUE(shard->append(document).ok());
  ASSERT_TRUE(shard->publish().ok());
  for (const bool llmc : {true, false}) {
    const auto source =
        llmc ? open_llmc_bin({dir_.file("l.bin")}, 500).value() : open_megatron({dir_.file("m.bin")}, 500).value();
    EXPECT_EQ(source->files().size(), llmc ? 1u : 2u);
    const auto want = source->documents(256).value();
    const auto split = hold_out_documents(*source, *want, 0.2, 256).value();
    for (const bool again : {false, true}) {
      const auto found = source->documents(256, cache_).value();
      ASSERT_EQ(found->count(), want->count());
      for (uint64_t i = 0; i < want->count(); ++i) ASSERT_EQ(found->end(i), want->end(i));
      const auto held = hold_out_documents(*source, *found, 0.2, 256, cache_).value();
      EXPECT_EQ(held.train, split.train) << again;
      EXPECT_EQ(held.eval, split.eval) << again;
      let_indexes_be_younger();
    }
    EXPECT_EQ(indexes().size(), llmc ? 2u : 3u);
  }
}

}  // namespace
}  // namespace telar::data
