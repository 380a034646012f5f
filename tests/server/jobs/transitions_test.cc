#include "server/jobs/transitions.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace telar::server::jobs {
namespace {

using v1::Job;

// Written out a second time, on purpose: 10 x 10 pairs in the order of the enum; X = legal.
const char* const kTable[] = {
    /* UNSPECIFIED */ ".X........",
    /* QUEUED      */ "..X.....XX",
    /* STARTING    */ "...XXXXX..",
    /* RUNNING     */ "....XXXX..",
    /* RESTARTING  */ ".X...XX...",
    /* CANCELLING  */ ".........X",
    /* FAILING     */ "........X.",
    /* SUCCEEDED   */ "..........",
    /* FAILED      */ "..........",
    /* CANCELLED   */ "..........",
};

class Transition : public testing::TestWithParam<int> {};

TEST_P(Transition, IsInTheTableOrRefused) {
  const int from = GetParam() / 10;
  const int to = GetParam() % 10;
  EXPECT_EQ(legal(static_cast<Job::State>(from), static_cast<Job::State>(to)), kTable[from][to] == 'X');
}

std::string name_of(const testing::TestParamInfo<int>& info) {
  return Job::State_Name(static_cast<Job::State>(info.param / 10)) + "_to_" +
         Job::State_Name(static_cast<Job::State>(info.param % 10));
}

INSTANTIATE_TEST_SUITE_P(AllPairs, Transition, testing::Range(0, 100), name_of);

TEST(Transitions, KindsOfStates) {
  std::set<int> all_terminal, all_ending, all_placed;
  for (int state = 0; state < 10; ++state) {
    if (terminal(static_cast<Job::State>(state))) all_terminal.insert(state);
    if (ending(static_cast<Job::State>(state))) all_ending.insert(state);
    if (placed(static_cast<Job::State>(state))) all_placed.insert(state);
  }
  EXPECT_EQ(all_terminal, (std::set<int>{Job::SUCCEEDED, Job::FAILED, Job::CANCELLED}));
  EXPECT_EQ(all_ending, (std::set<int>{Job::RESTARTING, Job::CANCELLING, Job::FAILING}));
  EXPECT_EQ(all_placed, (std::set<int>{Job::STARTING, Job::RUNNING, Job::RESTARTING, Job::CANCELLING, Job::FAILING}));
}

}  // namespace
}  // namespace telar::server::jobs
