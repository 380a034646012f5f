// Threads that share writes: each is written once, in the order of coming, and never two at a time.
#include "server/store/group_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace telar::server::store {
namespace {

struct Number {
  int value = 0;
  int written = 0;
};
using Writer = GroupWriter<Number>;

TEST(GroupWriterTest, WhoComesWhileOneWritesIsInTheNextGroup) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<int>> groups;
  bool open = false;
  Writer writer(
      1, [](const Writer::Group& group, const Number&) { return group.size() < 2; },
      [&](const Writer::Group& group) {
        std::unique_lock<std::mutex> hold(mutex);
        std::vector<int> values;
        for (Number* one : group) values.push_back(one->value);
        groups.push_back(values);
        changed.notify_all();
        changed.wait(hold, [&] { return open; });
        for (Number* one : group) ++one->written;
      });
  std::vector<std::thread> threads;
  std::vector<Number> numbers(6);
  numbers[0].value = -1;
  threads.emplace_back([&] { writer.run(numbers[0]); });
  {
    std::unique_lock<std::mutex> hold(mutex);
    changed.wait(hold, [&] { return !groups.empty(); });
  }
  for (size_t i = 1; i < numbers.size(); ++i) threads.emplace_back([&, i] { writer.run(numbers[i]); });
  {
    std::lock_guard<std::mutex> hold(mutex);
    EXPECT_EQ(groups.size(), 1u);
    open = true;
    changed.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
  for (const Number& one : numbers) EXPECT_EQ(one.written, 1);
  EXPECT_EQ(groups.front(), std::vector<int>{-1});
  for (const auto& group : groups) EXPECT_LE(group.size(), 2u);
}

TEST(GroupWriterTest, ManyThreadsAndNeverMoreWritersThanAllowed) {
  for (const int writers : {1, 2, 3}) {
    std::atomic<int> writing{0};
    Writer writer(
        writers, [](const Writer::Group& group, const Number&) { return group.size() < 5; },
        [&](const Writer::Group& group) {
          EXPECT_LE(++writing, writers);
          EXPECT_LE(group.size(), 5u);
          for (Number* one : group) ++one->written;
          --writing;
        });
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread) {
      threads.emplace_back([&] {
        for (int i = 0; i < 2'000; ++i) {
          Number one;
          writer.run(one);
          ASSERT_EQ(one.written, 1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(writing, 0);
  }
}

// Two that do not fit together are written at once where two may write.
TEST(GroupWriterTest, AsManyWriteAtOnceAsMay) {
  std::mutex mutex;
  std::condition_variable changed;
  int writing = 0;
  Writer writer(
      2, [](const Writer::Group&, const Number&) { return false; },
      [&](const Writer::Group& group) {
        std::unique_lock<std::mutex> hold(mutex);
        ++writing;
        changed.notify_all();
        changed.wait(hold, [&] { return writing >= 2; });  // Hangs if the other one waits for this.
        ++group.front()->written;
      });
  std::vector<Number> numbers(2);
  std::thread one([&] { writer.run(numbers[0]); }), other([&] { writer.run(numbers[1]); });
  one.join();
  other.join();
  for (const Number& number : numbers) EXPECT_EQ(number.written, 1);
}

}  // namespace
}  // namespace telar::server::store
