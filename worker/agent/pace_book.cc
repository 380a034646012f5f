#include "worker/agent/pace_book.h"

#include <algorithm>
#include <chrono>

#include "worker/flight/reader.h"

namespace telar::agent {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{500};

}  // namespace

void PaceBook::add(const RankKey& key, const std::string& flight_path) {
  const std::lock_guard lock(mutex_);
  Rank& rank = ranks_[key];
  rank.flight_path = flight_path;
  rank.moved = clock_->now();
}

void PaceBook::remove(const RankKey& key) {
  const std::lock_guard lock(mutex_);
  ranks_.erase(key);
}

void PaceBook::observe(const RankKey& key, const v1::RankEvent& event) {
  const std::lock_guard lock(mutex_);
  const auto found = ranks_.find(key);
  if (found == ranks_.end()) return;
  Rank& rank = found->second;
  rank.moved = clock_->now();
  if (!event.has_step()) return;
  rank.step = event.step().step();
  Step step{event.step().seconds(), std::nullopt};
  for (const v1::PhaseTime& phase : event.step().phases()) {
    if (phase.phase() == "peers") step.own = std::max(0.0, step.seconds - phase.seconds());
  }
  rank.steps.push_back(step);
  if (rank.steps.size() > kSlowestOf) rank.steps.pop_front();
}

void PaceBook::look() {
  const std::lock_guard lock(mutex_);
  const Clock::Steady now = clock_->now();
  if (looked_ && now - *looked_ < kBetweenLooks) return;
  looked_ = now;
  for (auto& [key, rank] : ranks_) {
    const auto seen = flight::glance(rank.flight_path);
    if (!seen) continue;
    rank.activity = static_cast<v1::RankPace::Activity>(seen->activity);
    if (seen->beats == rank.beats) continue;
    rank.beats = seen->beats;
    rank.moved = now;
  }
}

std::optional<v1::RankPace> PaceBook::pace(const RankKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = ranks_.find(key);
  if (found == ranks_.end()) return std::nullopt;
  const Rank& rank = found->second;
  v1::RankPace pace;
  pace.set_step(rank.step);
  pace.set_silent_seconds(std::chrono::duration<double>(clock_->now() - rank.moved).count());
  pace.set_activity(rank.activity);
  double slowest = 0, seconds = 0, own = 0;
  size_t back = 0, known = 0;
  for (auto step = rank.steps.rbegin(); step != rank.steps.rend(); ++step, ++back) {
    slowest = std::max(slowest, step->seconds);
    if (back < kMeanOf) seconds += step->seconds;
    if (!step->own || known == kMeanOf) continue;
    own += *step->own;
    ++known;
  }
  pace.set_slowest_seconds(slowest);
  if (back >= kMeanOf) {
    pace.set_step_seconds(seconds / kMeanOf);
    if (known > 0) pace.set_own_seconds(own / static_cast<double>(known));
  }
  return pace;
}

}  // namespace telar::agent
