// What the job manager is made of, and what it answers with beside the messages of the contract.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "common/clock.h"
#include "server/jobs/hold.h"
#include "server/jobs/queue.h"
#include "telar/v1/jobs.pb.h"

namespace telar::server::jobs {

struct JobOptions {
  std::string run_root;            // Run folders are <run_root>/<job id>.
  std::string rendezvous_address;  // Where ranks reach the Rendezvous service; see set_rendezvous_address().
  std::chrono::milliseconds heartbeat_interval{2'000};
  std::chrono::milliseconds lease{10'000};
  std::chrono::milliseconds stop_grace{15'000};        // From SIGTERM to SIGKILL, where the job does not say.
  std::chrono::milliseconds receipt_deadline{60'000};  // From the last rank's end to the last node's receipt.
  std::vector<QueueConfig> queues = {{.name = kDefaultQueue}};
  std::chrono::milliseconds patience{300'000};       // See RoundInput.
  std::chrono::milliseconds flight_patience{5'000};  // For the flight records of a gang that hangs.
  std::chrono::milliseconds grow_after{300'000};     // A shrunk job runs at least so long before it starts larger.
  std::vector<std::string> allowed_roots;            // What specs may name paths below; empty: anything.
};

// Told of what only counters keep. Called under the manager's lock: be quick, call nothing back.
class Observer : public HoldObserver {
 public:
  virtual void on_restart(v1::FailureClass cause) = 0;  // UNSPECIFIED: interrupted from outside.
  virtual void on_placed(double queue_seconds) = 0;
  virtual void on_hang(bool named) = 0;  // It is known which rank the others wait for.
  virtual void on_straggler() = 0;       // A job has other slow ranks than before.
};

// A job that a forecast is wanted of.
struct ForecastWish {
  std::string job;  // Id.
  uint64_t epoch = 0;
  v1::JobSpec spec;             // As the epoch runs it.
  std::vector<v1::Node> nodes;  // With the devices that it has there, and nothing else.
};

// A piece of a job's history.
struct EventPage {
  std::vector<v1::JobEvent> events;
  v1::Job job;            // As of now.
  bool complete = false;  // The job is terminal, and these are its last events.
};

// The last checkpoint of a job that may be published.
struct Commit {
  uint64_t epoch = 0;
  uint64_t step = 0;
};

// Who was told to stop an epoch.
struct StopTold {
  uint64_t epoch = 0;
  std::map<std::string, Clock::Steady> at;  // Node -> when an answer first said STOP.
};

// What figures are made of, of a job that is not terminal.
struct LiveJob {
  std::string id, name, model;
  v1::Job::State state = v1::Job::STATE_UNSPECIFIED;
  v1::ResourceSpec::Kind kind = v1::ResourceSpec::KIND_UNSPECIFIED;
  uint32_t data = 0, tensor = 0, pipeline = 0;  // As it runs, or would.
  uint64_t step = 0;
  v1::Goodput goodput;
  double straggler_ratio = 0;  // The largest own time of a rank over the gang's median; 0: not known.
  v1::JobForecast forecast;    // Empty: none yet.
};

// All jobs, for whoever counts.
struct Census {
  std::map<v1::Job::State, uint64_t> states;
  std::vector<LiveJob> live;
};

}  // namespace telar::server::jobs
