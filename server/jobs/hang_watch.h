// Watches over the gangs that run: keeps what workers tell of their ranks' pace, and takes a hang from the first
// suspicion to the moment at which it can be judged. In memory only: after a restart of the coordinator the next
// heartbeats say all of it again.
//
// Not thread-safe: the job manager calls it under its own lock.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "server/jobs/hang.h"
#include "server/jobs/record.pb.h"
#include "server/jobs/straggler.h"

namespace telar::server::jobs {

class HangWatch {
 public:
  // `patience`: for the flight records, once they are asked for.
  explicit HangWatch(std::chrono::milliseconds patience) : patience_(patience) {}

  // A heartbeat told of a rank of this epoch, now.
  void heard(const std::string& id, uint64_t epoch, uint32_t rank, const v1::RankPace& pace, Clock::Steady now);
  void take_record(const std::string& id, uint64_t epoch, uint32_t rank, const v1::FlightRecord& record);
  // The job is not placed any more.
  void forget(const std::string& id) { gangs_.erase(id); }

  enum class Next {
    kNothing,
    kAsk,    // It hangs; from now on wants() says whose records are wanted.
    kJudge,  // The records are here, or do not come.
  };
  // To be asked again and again while the job runs.
  Next look(const JobRecord& record, Clock::Steady now);
  // Whether this rank's record is wanted.
  bool wants(const std::string& id, uint32_t rank) const;

  // The gang, for find_cause(); its records stay where they are until forget() or the next epoch.
  std::vector<GangMember> members(const JobRecord& record) const;
  // Whether other ranks of the job are slow than at the last call.
  bool look_for_stragglers(const JobRecord& record);
  std::string stragglers(const JobRecord& record) const;
  // Fills in RankPlacement.progress of those that run, for people.
  void show(const JobRecord& record, Clock::Steady now, v1::Job& job) const;
  double straggler_ratio(const std::string& id) const;
  // Since when it is known that all run; nothing: they do not.
  std::optional<Clock::Steady> running_since(const std::string& id) const;

 private:
  struct Heard {
    v1::RankPace pace;
    Clock::Steady at;
  };
  struct Gang {
    uint64_t epoch = 0;
    std::map<uint32_t, Heard> paces;
    std::optional<Clock::Steady> running;
    std::optional<Clock::Steady> asked;
    std::map<uint32_t, v1::FlightRecord> records;
    Stragglers stragglers;
  };
  Gang& gang_of(const std::string& id, uint64_t epoch);
  const Gang* find(const std::string& id) const;

  const std::chrono::milliseconds patience_;
  std::map<std::string, Gang> gangs_;  // By job id.
};

}  // namespace telar::server::jobs
