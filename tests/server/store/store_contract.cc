#include "tests/server/store/store_contract.h"

#include <thread>

namespace telar::server::store {

Batch batch_of(const std::string& job, const std::string& blob, uint64_t sequence, const std::string& request) {
  Batch batch;
  batch.job = JobRow{job, blob};
  batch.events = {{sequence, 0, "event " + std::to_string(sequence)}};
  batch.stream = StreamRow{1, 0, sequence};
  batch.answer = AnswerRow{request, "answer to " + request};
  return batch;
}

void StoreContract::SetUp() {
  database_ = GetParam()();
  if (!database_->missing().empty()) GTEST_SKIP() << database_->missing();
  reopen();
}

void StoreContract::reopen() {
  store_.reset();
  database_->close();
  auto store = database_->open();
  ASSERT_TRUE(store.ok()) << store.status();
  store_ = *std::move(store);
}

namespace {

TEST_P(StoreContract, KeepsWhatWasCommittedAcrossAReopen) {
  ASSERT_TRUE(store_->commit(batch_of("a", std::string("\0x\0", 3), 1, "r1")).ok());
  ASSERT_TRUE(store_->commit(batch_of("a", "second", 2, "r2")).ok());
  ASSERT_TRUE(store_->commit(batch_of("b", "", 1, "r3")).ok());
  reopen();
  auto jobs = store_->jobs();
  ASSERT_EQ(jobs->size(), 2u);
  EXPECT_EQ((*jobs)[0].blob, "second");
  EXPECT_EQ((*jobs)[1].id, "b");
  EXPECT_EQ((*jobs)[1].blob, "");
  auto events = store_->events("a", 1, 10);
  ASSERT_EQ(events->size(), 1u);
  EXPECT_EQ((*events)[0].sequence, 2u);
  EXPECT_EQ((*events)[0].blob, "event 2");
  EXPECT_EQ(store_->events("a", 0, 1)->at(0).sequence, 1u);
  EXPECT_TRUE(store_->events("a", 2, 10)->empty());
  EXPECT_TRUE(store_->events("c", 0, 10)->empty());
  EXPECT_EQ(store_->next_line("a", 1, 0).value(), 2u);
  EXPECT_EQ(store_->next_line("a", 2, 0).value(), 0u);
  EXPECT_EQ(store_->answer("r2").value().value(), "answer to r2");
  EXPECT_FALSE(store_->answer("r9").value().has_value());
}

TEST_P(StoreContract, CommitsAllOrNothing) {
  ASSERT_TRUE(store_->commit(batch_of("a", "first", 1, "r1")).ok());
  // The same event sequence again: the batch must leave no trace, its new job blob neither.
  EXPECT_FALSE(store_->commit(batch_of("a", "changed", 1, "r2")).ok());
  // The same answer again.
  EXPECT_FALSE(store_->commit(batch_of("a", "changed", 2, "r1")).ok());
  EXPECT_EQ(store_->jobs()->at(0).blob, "first");
  EXPECT_EQ(store_->events("a", 0, 10)->size(), 1u);
  EXPECT_FALSE(store_->answer("r2").value().has_value());
  EXPECT_TRUE(store_->commit(batch_of("a", "changed", 2, "r2")).ok());
  EXPECT_EQ(store_->jobs()->at(0).blob, "changed");
}

TEST_P(StoreContract, ThinsStepEventsOnly) {
  Batch batch;
  batch.job = JobRow{"a", ""};
  batch.events.push_back({1, 0, "state"});
  for (uint64_t step = 1; step <= 9; ++step) batch.events.push_back({step + 1, step, "step"});
  ASSERT_TRUE(store_->commit(batch).ok());
  Batch thin;
  thin.job = JobRow{"a", ""};
  thin.step_stride = 4;
  thin.erase_events = {5};  // Step 4.
  thin.events = {{20, 11, "new"}};
  ASSERT_TRUE(store_->commit(thin).ok());
  auto events = store_->events("a", 0, 100);
  ASSERT_EQ(events->size(), 3u);
  EXPECT_EQ((*events)[0].blob, "state");
  EXPECT_EQ((*events)[1].step, 8u);
  EXPECT_EQ((*events)[2].step, 11u);  // The stride is for those before.
}

TEST_P(StoreContract, TakesLargeBatchesWhole) {
  Batch batch;
  batch.job = JobRow{"a", "blob"};
  for (uint64_t i = 1; i <= 900; ++i) batch.events.push_back({i, i, std::string(4000, 'x')});
  ASSERT_TRUE(store_->commit(batch).ok());
  EXPECT_EQ(store_->events("a", 0, 1000)->size(), 900u);
  Batch erase;
  erase.job = JobRow{"a", "less"};
  for (uint64_t i = 1; i <= 400; ++i) erase.erase_events.push_back(i);
  erase.events = {{901, 901, "new"}};
  ASSERT_TRUE(store_->commit(erase).ok());
  reopen();
  auto events = store_->events("a", 0, 1000);
  ASSERT_EQ(events->size(), 501u);
  EXPECT_EQ(events->front().sequence, 401u);
  EXPECT_EQ(events->back().blob, "new");
  EXPECT_EQ(store_->jobs()->at(0).blob, "less");
}

TEST_P(StoreContract, KeepsSettingsByPrefixUntilTheyAreErased) {
  Batch batch;  // Of no job.
  batch.settings = {{"node/b", ""}, {"node/a", std::string("A\0", 2)}, {"nodes", "no"}, {"N%de/x", "x"}};
  batch.answer = AnswerRow{"cordon:1", "done"};
  ASSERT_TRUE(store_->commit(batch).ok());
  EXPECT_TRUE(store_->jobs()->empty());
  reopen();
  auto rows = store_->settings("node/");
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[0].key, "node/a");
  EXPECT_EQ((*rows)[0].blob, std::string("A\0", 2));
  EXPECT_EQ((*rows)[1].blob, "");
  EXPECT_EQ(store_->settings("N%")->size(), 1u);
  EXPECT_EQ(store_->settings("n%")->size(), 0u);
  EXPECT_EQ(store_->settings("")->size(), 4u);
  EXPECT_EQ(store_->answer("cordon:1").value().value(), "done");
  Batch erase;
  erase.settings = {{"node/a", std::nullopt}, {"node/c", std::nullopt}, {"node/b", "new"}};
  ASSERT_TRUE(store_->commit(erase).ok());
  reopen();
  rows = store_->settings("node/");
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ((*rows)[0].blob, "new");
}

TEST_P(StoreContract, CommitsManyJobsTogetherOrNone) {
  // The second answer to one request.
  EXPECT_FALSE(store_->commit_all({batch_of("a", "first", 1, "r1"), batch_of("b", "second", 1, "r1")}).ok());
  EXPECT_TRUE(store_->jobs()->empty());
  ASSERT_TRUE(store_->commit_all({batch_of("a", "first", 1, "r1"), batch_of("b", "second", 1, "r2")}).ok());
  EXPECT_EQ(store_->jobs()->size(), 2u);
  EXPECT_EQ(store_->events("b", 0, 10)->size(), 1u);
  // More than one request to any database takes.
  std::vector<Batch> batches;
  for (int i = 0; i < 500; ++i) {
    batches.push_back(batch_of("t" + std::to_string(i), std::string(8000, 'x'), 1, "r2"));
    if (i != 499) batches.back().answer.reset();
  }
  EXPECT_FALSE(store_->commit_all(batches).ok());
  EXPECT_EQ(store_->jobs()->size(), 2u);
  EXPECT_TRUE(store_->events("t0", 0, 10)->empty());
  batches[499].answer->request = "r3";
  ASSERT_TRUE(store_->commit_all(batches).ok());
  reopen();
  EXPECT_EQ(store_->jobs()->size(), 502u);
  EXPECT_EQ(store_->events("t499", 0, 10)->size(), 1u);
  EXPECT_EQ(store_->answer("r3").value().value(), "answer to r2");
}

TEST_P(StoreContract, ManyThreadsLoseNothing) {
  constexpr uint64_t kThreads = 8, kCommits = 25;
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const std::string job = "job" + std::to_string(thread);
      for (uint64_t i = 1; i <= kCommits; ++i) {
        const std::string request = job + " " + std::to_string(i);
        EXPECT_TRUE(store_->commit(batch_of(job, std::to_string(i), i, request)).ok());
        EXPECT_EQ(store_->next_line(job, 1, 0).value(), i);  // Its own writes it sees at once.
        // One that fails takes none of the others with it.
        EXPECT_FALSE(store_->commit(batch_of(job, "wrong", i, request + " again")).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  reopen();
  const auto jobs = store_->jobs();
  ASSERT_EQ(jobs->size(), kThreads);
  for (const JobRow& row : *jobs) {
    EXPECT_EQ(row.blob, std::to_string(kCommits));
    EXPECT_EQ(store_->events(row.id, 0, 1000)->size(), kCommits);
  }
}

}  // namespace
}  // namespace telar::server::store
