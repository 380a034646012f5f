// Explores the protocol of docs/adr/0010 within bounds, and shows that mistakes planted in it are found.
//
// TELAR_MODEL_MORE_FAULTS=N   explores with N more faults each; 1 takes a few minutes and some GiB
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/model/protocol.h"

namespace telar::tests::model {
namespace {

constexpr uint64_t kMostStates = 400'000'000;

Exploration explore(const char* name, const Limits& limits, const Mistakes& mistakes = {}) {
  const auto start = std::chrono::steady_clock::now();
  const Protocol protocol(limits, mistakes);
  const Exploration found = Explorer<Protocol>(protocol).run(kMostStates);
  std::printf("%-28s %d faults: %9llu states, depth %3d, %.2f s%s%s\n", name, limits.faults,
              static_cast<unsigned long long>(found.states), found.depth,
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
              found.violation.empty() ? "" : ": ", found.violation.c_str());
  for (const std::string& step : found.way) std::printf("    %s\n", step.c_str());
  return found;
}

int faults(int usual) {
  const char* more = std::getenv("TELAR_MODEL_MORE_FAULTS");
  return usual + (more == nullptr ? 0 : std::atoi(more));
}

void expect_right(const char* name, const Limits& limits) {
  const Exploration found = explore(name, limits);
  EXPECT_EQ(found.violation, "");
  EXPECT_TRUE(found.complete);
}

TEST(Model, OneRank) { expect_right("one rank", {.faults = faults(2)}); }
TEST(Model, OneRankSavesTwice) { expect_right("one rank, two saves", {.saves = 2, .faults = faults(1)}); }
TEST(Model, Submitted) {
  expect_right("submitted", {.saves = 0, .own_restarts = 0, .node_restarts = 0, .faults = faults(2), .submits = true});
}
TEST(Model, Cancelled) { expect_right("cancelled", {.saves = 0, .faults = faults(2), .cancels = true}); }
TEST(Model, Gang) { expect_right("gang of two", {.gang = 2, .saves = 0, .faults = faults(1)}); }
TEST(Model, TwoJobs) {
  expect_right("two jobs", {.jobs = 2, .saves = 0, .own_restarts = 0, .faults = faults(1), .cancels = true});
}
TEST(Model, HonestClocks) { expect_right("honest clocks", {.faults = faults(1), .honest_clocks = true}); }

// What stands between us and each of these is the one line of the protocol that the mistake leaves out.
void expect_found(const char* name, Limits limits, const Mistakes& mistakes, const char* violation) {
  const Exploration found = explore(name, limits, mistakes);
  EXPECT_EQ(found.violation, violation);
}

constexpr const char* kStale = "an epoch published after a newer one had restored or published";
constexpr const char* kNotFree = "a device counts as free, and a process is on it";

TEST(Mistake, PublishesUnasked) { expect_found("publishes unasked", {}, {.publishes_unasked = true}, kStale); }
TEST(Mistake, EpochUnchecked) { expect_found("epoch unchecked", {}, {.epoch_unchecked = true}, kStale); }
TEST(Mistake, SweepsFirst) {
  expect_found("sweeps first", {}, {.sweeps_first = true},
               "an epoch restored less than what an earlier one was told it may publish");
}
TEST(Mistake, ReusesLostDevices) {
  expect_found("reuses lost devices", {.saves = 0}, {.reuses_lost_devices = true}, kNotFree);
}
TEST(Mistake, AnswersBeforeStoring) {
  expect_found("answers before storing", {.submits = true}, {.answers_before_storing = true},
               "an acknowledged job is lost");
}
TEST(Mistake, ForgetsRequests) {
  expect_found("forgets requests", {.submits = true}, {.forgets_requests = true}, "one request made two jobs");
}
// These three were in the code until the model found them.
TEST(Mistake, CountsHeartbeats) {
  expect_found("counts heartbeats", {.saves = 0, .cancels = true}, {.counts_heartbeats = true}, kNotFree);
}
TEST(Mistake, TakesOldHeartbeats) {
  expect_found("takes old heartbeats", {.saves = 0}, {.takes_old_heartbeats = true}, kNotFree);
}
TEST(Mistake, KeepsItsWish) { expect_found("keeps its wish", {.saves = 0}, {.keeps_its_wish = true}, kNotFree); }
TEST(Mistake, SaysWhatWas) { expect_found("says what was", {.saves = 0}, {.says_what_was = true}, kNotFree); }

}  // namespace
}  // namespace telar::tests::model
