#include "server/store/store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/server/scratch.h"

namespace telar::server::store {
namespace {

using tests::Scratch;

Batch batch_of(const std::string& job, const std::string& blob, uint64_t sequence, const std::string& request) {
  Batch batch;
  batch.job = {job, blob};
  batch.events = {{sequence, 0, "event " + std::to_string(sequence)}};
  batch.stream = StreamRow{1, 0, sequence};
  batch.answer = AnswerRow{request, "answer to " + request};
  return batch;
}

TEST(Store, KeepsWhatWasCommittedAcrossAReopen) {
  Scratch scratch;
  const std::string path = scratch.path("db");
  {
    auto store = open_sqlite({.path = path});
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->commit(batch_of("a", std::string("\0x\0", 3), 1, "r1")).ok());
    ASSERT_TRUE((*store)->commit(batch_of("a", "second", 2, "r2")).ok());
    ASSERT_TRUE((*store)->commit(batch_of("b", "", 1, "r3")).ok());
  }
  auto store = open_sqlite({.path = path});
  ASSERT_TRUE(store.ok()) << store.status();
  auto jobs = (*store)->jobs();
  ASSERT_EQ(jobs->size(), 2u);
  EXPECT_EQ((*jobs)[0].blob, "second");
  EXPECT_EQ((*jobs)[1].blob, "");
  auto events = (*store)->events("a", 1, 10);
  ASSERT_EQ(events->size(), 1u);
  EXPECT_EQ((*events)[0].sequence, 2u);
  EXPECT_EQ((*store)->next_line("a", 1, 0).value(), 2u);
  EXPECT_EQ((*store)->next_line("a", 2, 0).value(), 0u);
  EXPECT_EQ((*store)->answer("r2").value().value(), "answer to r2");
  EXPECT_FALSE((*store)->answer("r9").value().has_value());
}

TEST(Store, KeepsSettingsByPrefixUntilTheyAreErased) {
  Scratch scratch;
  const std::string path = scratch.path("db");
  {
    auto store = open_sqlite({.path = path});
    Batch batch;  // Of no job.
    batch.settings = {{"node/b", "B"}, {"node/a", std::string("A\0", 2)}, {"nodes", "no"}, {"N%de/x", "x"}};
    batch.answer = AnswerRow{"cordon:1", "done"};
    ASSERT_TRUE((*store)->commit(batch).ok());
    EXPECT_TRUE((*store)->jobs()->empty());
  }
  auto store = open_sqlite({.path = path});
  auto rows = (*store)->settings("node/");
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[0].key, "node/a");
  EXPECT_EQ((*rows)[0].blob, std::string("A\0", 2));
  EXPECT_EQ((*store)->settings("N%")->size(), 1u);
  EXPECT_EQ((*store)->settings("n%")->size(), 0u);
  EXPECT_EQ((*store)->settings("")->size(), 4u);
  EXPECT_EQ((*store)->answer("cordon:1").value().value(), "done");
  Batch erase;
  erase.settings = {{"node/a", std::nullopt}, {"node/c", std::nullopt}, {"node/b", "new"}};
  ASSERT_TRUE((*store)->commit(erase).ok());
  rows = (*store)->settings("node/");
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ((*rows)[0].blob, "new");
}

TEST(Store, CommitsManyJobsTogetherOrNone) {
  auto store = open_sqlite({.path = ":memory:"});
  EXPECT_FALSE((*store)->commit_all({batch_of("a", "first", 1, "r1"), batch_of("b", "second", 1, "r1")}).ok());
  EXPECT_TRUE((*store)->jobs()->empty());  // The second answer to one request.
  ASSERT_TRUE((*store)->commit_all({batch_of("a", "first", 1, "r1"), batch_of("b", "second", 1, "r2")}).ok());
  EXPECT_EQ((*store)->jobs()->size(), 2u);
  EXPECT_EQ((*store)->events("b", 0, 10)->size(), 1u);
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

TEST(Store, CommitsAllOrNothing) {
  auto store = open_sqlite({.path = ":memory:"});
  ASSERT_TRUE((*store)->commit(batch_of("a", "first", 1, "r1")).ok());
  // The same event sequence again: the batch must leave no trace, its new job blob neither.
  EXPECT_FALSE((*store)->commit(batch_of("a", "changed", 1, "r2")).ok());
  EXPECT_EQ((*store)->jobs()->at(0).blob, "first");
  EXPECT_FALSE((*store)->answer("r2").value().has_value());
  EXPECT_TRUE((*store)->commit(batch_of("a", "changed", 2, "r2")).ok());
}

TEST(Store, ThinsStepEventsOnly) {
  auto store = open_sqlite({.path = ":memory:"});
  Batch batch;
  batch.job = {"a", ""};
  batch.events.push_back({1, 0, "state"});
  for (uint64_t step = 1; step <= 9; ++step) batch.events.push_back({step + 1, step, "step"});
  ASSERT_TRUE((*store)->commit(batch).ok());
  Batch thin;
  thin.job = {"a", ""};
  thin.step_stride = 4;
  thin.erase_events = {5};  // Step 4.
  ASSERT_TRUE((*store)->commit(thin).ok());
  auto events = (*store)->events("a", 0, 100);
  ASSERT_EQ(events->size(), 2u);
  EXPECT_EQ((*events)[0].blob, "state");
  EXPECT_EQ((*events)[1].step, 8u);
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
