#include "server/store/store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "tests/server/scratch.h"
#include "tests/server/store/store_contract.h"

namespace telar::server::store {
namespace {

using tests::Scratch;

class SqliteDatabase final : public Database {
 public:
  absl::StatusOr<std::unique_ptr<Store>> open() override { return open_sqlite({.path = scratch_.path("db")}); }

 private:
  Scratch scratch_;
};

INSTANTIATE_TEST_SUITE_P(Sqlite, StoreContract, testing::Values([] { return std::make_unique<SqliteDatabase>(); }));

TEST(Store, WorksInMemory) {
  auto store = open_sqlite({.path = ":memory:"});
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->commit(batch_of("a", "first", 1, "r1")).ok());
  EXPECT_EQ((*store)->jobs()->at(0).blob, "first");
  EXPECT_EQ((*store)->events("a", 0, 10)->size(), 1u);
}

// A child process dies at the failpoint; what it had acknowledged is there, the batch at hand wholly or not at all.
void die_at(const std::string& path, const char* point) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int commits = 0;
    auto store = open_sqlite({.path = path, .failpoint = [&](const char* at) {
                                if (commits == 2 && std::strcmp(at, point) == 0) _exit(42);
                              }});
    for (; commits < 5; ++commits) {
      const std::string number = std::to_string(commits);
      if (!(*store)->commit(batch_of("a", number, static_cast<uint64_t>(commits) + 1, "r" + number)).ok()) _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(WEXITSTATUS(status), 42);
}

class StoreCrash : public testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(StoreCrash, LosesNothingAcknowledged) {
  Scratch scratch;
  die_at(scratch.path("db"), GetParam().first);
  auto store = open_sqlite({.path = scratch.path("db")});
  ASSERT_TRUE(store.ok()) << store.status();
  const int kept = GetParam().second;
  EXPECT_EQ((*store)->jobs()->at(0).blob, std::to_string(kept - 1));
  EXPECT_EQ((*store)->events("a", 0, 100)->size(), static_cast<size_t>(kept));
  for (int i = 0; i < 5; ++i) EXPECT_EQ((*store)->answer("r" + std::to_string(i)).value().has_value(), i < kept) << i;
}

INSTANTIATE_TEST_SUITE_P(Points, StoreCrash,
                         testing::Values(std::pair("begin", 2), std::pair("written", 2), std::pair("committed", 3)));

// Four threads commit at once; the process dies in the middle of the n-th transaction. What any of them had
// acknowledged is there, and no batch in part.
void die_in_a_group(const std::string& path, const char* point, int acknowledged) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> transactions{0};
    auto store = open_sqlite({.path = path, .failpoint = [&](const char* at) {
                                if (std::strcmp(at, "begin") == 0) ++transactions;
                                if (transactions > 4 && std::strcmp(at, point) == 0) _exit(42);
                              }});
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (uint8_t i = 1; i < 100; ++i) {
          const std::string job = "job" + std::to_string(thread);
          if (!(*store)->commit(batch_of(job, std::to_string(i), i, job + " " + std::to_string(i))).ok()) _exit(1);
          const uint8_t word[] = {static_cast<uint8_t>(thread), i};
          if (write(acknowledged, word, sizeof word) != sizeof word) _exit(1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(WEXITSTATUS(status), 42);
}

class GroupCrash : public testing::TestWithParam<const char*> {};

TEST_P(GroupCrash, LosesNothingThatAnyThreadWasToldOf) {
  Scratch scratch;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  die_in_a_group(scratch.path("db"), GetParam(), ends[1]);
  close(ends[1]);
  std::map<int, int> told;
  uint8_t word[2];
  while (read(ends[0], word, sizeof word) == sizeof word) told[word[0]] = std::max<int>(told[word[0]], word[1]);
  close(ends[0]);
  auto store = open_sqlite({.path = scratch.path("db")});
  ASSERT_TRUE(store.ok()) << store.status();
  std::map<std::string, int> kept;
  const auto rows = (*store)->jobs();
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (const JobRow& row : *rows) kept[row.id] = std::stoi(row.blob);
  for (int thread = 0; thread < 4; ++thread) {
    const std::string job = "job" + std::to_string(thread);
    EXPECT_GE(kept[job], told[thread]) << job;
    EXPECT_LE(kept[job], told[thread] + 1) << job;  // One was on its way.
    EXPECT_EQ((*store)->events(job, 0, 1000)->size(), static_cast<size_t>(kept[job]));
    EXPECT_EQ((*store)->next_line(job, 1, 0).value(), static_cast<uint64_t>(kept[job]));
    EXPECT_FALSE((*store)->answer(job + " " + std::to_string(kept[job] + 1)).value().has_value());
  }
}

INSTANTIATE_TEST_SUITE_P(Points, GroupCrash, testing::Values("begin", "written", "committed"));

TEST(Store, ThreadsShareTransactions) {
  Scratch scratch;
  std::mutex mutex;
  std::condition_variable changed;
  size_t waiting = 0;
  std::atomic<int> transactions{0};
  // The first transaction waits until all others have come.
  auto store = open_sqlite({.path = scratch.path("db"),
                            .on_transaction = [&] { ++transactions; },
                            .failpoint =
                                [&](const char* at) {
                                  if (std::strcmp(at, "begin") != 0) return;
                                  std::unique_lock<std::mutex> hold(mutex);
                                  changed.wait_for(hold, std::chrono::seconds(10), [&] { return waiting == 20; });
                                }});
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<std::thread> threads;
  for (int i = 0; i < 20; ++i) {
    threads.emplace_back([&, i] {
      {
        std::lock_guard<std::mutex> hold(mutex);
        ++waiting;
        changed.notify_all();
      }
      EXPECT_TRUE((*store)->commit(batch_of("job" + std::to_string(i), "", 1, "r" + std::to_string(i))).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(transactions.load(), 20);
  EXPECT_EQ((*store)->jobs()->size(), 20u);
}

TEST(Store, OpensWhatAnOlderProgramWrote) {
  Scratch scratch;
  const std::string path = scratch.path("db");
  { ASSERT_TRUE((*open_sqlite({.path = path}))->commit(batch_of("a", "kept", 1, "r1")).ok()); }
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "DROP TABLE settings; UPDATE schema SET version=1", nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(database);
  for (int i = 0; i < 2; ++i) {
    auto store = open_sqlite({.path = path});
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ((*store)->jobs()->at(0).blob, "kept");
    Batch batch;
    batch.settings = {{"k", "v"}};
    EXPECT_TRUE((*store)->commit(batch).ok());
    EXPECT_EQ((*store)->settings("")->size(), 1u);
  }
}

TEST(Store, RefusesANewerSchema) {
  Scratch scratch;
  { ASSERT_TRUE(open_sqlite({.path = scratch.path("db")}).ok()); }
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(scratch.path("db").c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "UPDATE schema SET version=99", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  const absl::Status status = open_sqlite({.path = scratch.path("db")}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("schema 99"), std::string::npos) << status;
}

TEST(Store, NamesThePathOfWhatItCannotUse) {
  Scratch scratch;
  const std::string missing = scratch.path("no/such/folder/db");
  EXPECT_NE(open_sqlite({.path = missing}).status().message().find(missing), std::string::npos);

  std::ofstream(scratch.path("text")) << std::string(4096, 'x');
  const absl::Status not_a_database = open_sqlite({.path = scratch.path("text")}).status();
  EXPECT_EQ(not_a_database.code(), absl::StatusCode::kDataLoss) << not_a_database;

  auto first = open_sqlite({.path = scratch.path("db")});
  ASSERT_TRUE(first.ok());
  const absl::Status second = open_sqlite({.path = scratch.path("db")}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable) << second;
  EXPECT_NE(second.message().find("another coordinator"), std::string::npos);
}

TEST(Store, SaysThatTheDatabaseIsLocked) {
  Scratch scratch;
  auto store = open_sqlite({.path = scratch.path("db")});
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(scratch.path("db").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  const absl::Status status = (*store)->commit(batch_of("a", "x", 1, "r"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find(scratch.path("db")), std::string::npos);
  sqlite3_close(other);
  EXPECT_TRUE((*store)->commit(batch_of("a", "x", 1, "r")).ok());
}

}  // namespace
}  // namespace telar::server::store
