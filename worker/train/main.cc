// telar-rank: one rank of a job, one process a device. Started by the worker daemon with a plan; tells its story in an
// events file and in its exit code (worker/metrics/exit_codes.h).
#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "common/process.h"
#include "common/utf8.h"
#include "worker/flight/format.h"
#include "worker/metrics/exit_codes.h"
#include "worker/metrics/rank_files.h"
#include "worker/train/event_log.h"
#include "worker/train/failure.h"
#include "worker/train/rank_log.h"
#include "worker/train/run.h"

namespace {

constexpr const char* kUsage =
    "usage: telar-rank --plan FILE --events FILE [--executor lanes|sequential]\n"
    "Runs one rank of a job from a RankPlan in JSON; started by telar-worker. Exit codes: 0 finished, 10 interrupted "
    "and saved,\n20 + failure class otherwise. The sequential executor waits for every op: slow, but an error of the "
    "device names its op.\n";

struct Arguments {
  std::string plan, events, executor = "lanes";
};

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--plan")
      arguments.plan = argv[i + 1];
    else if (name == "--events")
      arguments.events = argv[i + 1];
    else if (name == "--executor")
      arguments.executor = argv[i + 1];
    else
      return false;
  }
  const bool executor = arguments.executor == "lanes" || arguments.executor == "sequential";
  return argc % 2 == 1 && !arguments.plan.empty() && !arguments.events.empty() && executor;
}

// Not a normal return: threads of a broken group may never end, and the state that matters is on disk. The first of two
// threads decides.
[[noreturn]] void leave(int code) {
  static std::atomic_flag leaving = ATOMIC_FLAG_INIT;
  if (!leaving.test_and_set()) std::quick_exit(code);
  for (;;) pause();
}

[[noreturn]] void leave_unbegun(telar::train::EventLog& events) {
  spdlog::info("interrupted before the first step: there is nothing to save");
  telar::v1::RankEvent event;
  event.mutable_finished()->set_interrupted(true);
  const absl::Status written = events.write(event);
  if (!written.ok()) spdlog::error("{}", std::string(written.message()));
  leave(telar::metrics::kExitInterrupted);
}

absl::Status read_plan(const std::string& path, telar::v1::RankPlan& plan) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError("cannot read plan " + path);
  const auto parsed = google::protobuf::util::JsonStringToMessage(text.str(), &plan);
  if (!parsed.ok()) return absl::InvalidArgumentError(path + ": " + parsed.message().ToString());
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  telar::block_signals();  // Before any thread exists.
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::cerr << kUsage;
    return telar::metrics::exit_code(telar::v1::CONFIG);
  }
  telar::train::RankLog& log = telar::train::init_rank_logging("telar-rank");
  auto events = telar::train::EventLog::open(arguments.events);
  if (!events.ok()) {
    spdlog::error("{}", std::string(events.status().message()));
    return telar::metrics::exit_code(telar::v1::STORAGE);
  }
  (*events)->set_lost_log([&log] { return log.take_lost(); });

  std::atomic<bool> stop{false}, begun{false};
  // Asked to stop: the loop sees it behind the running step. Before the first step there is nothing to save, and
  // whatever the start is waiting for need not come to its end.
  std::thread([&] {
    for (;;) {
      const int signal = telar::wait_for_signal();
      if (signal != SIGTERM && signal != SIGINT) continue;
      stop = true;
      if (!begun) leave_unbegun(**events);
    }
  }).detach();
  telar::train::RunSeams seams;
  const std::string folder = arguments.events.substr(0, arguments.events.rfind('/') + 1);
  seams.flight_path = folder + telar::flight::kFileName;
  seams.trace.wishes_path = folder + telar::metrics::kWishesFile;
  seams.may_begin = [&] {
    begun = true;
    return !stop;
  };

  telar::v1::RankPlan plan;
  absl::Status status = telar::train::with_class(telar::v1::CONFIG, read_plan(arguments.plan, plan));
  if (status.ok()) {
    const auto execution = arguments.executor == "lanes" ? telar::train::Replica::Execution::kLanes
                                                         : telar::train::Replica::Execution::kSequential;
    const auto outcome = telar::train::run(plan, **events, stop, execution, seams);
    if (outcome.ok()) {
      spdlog::info("{} at step {}", outcome->interrupted ? "interrupted" : "finished", outcome->step);
      leave(outcome->interrupted ? telar::metrics::kExitInterrupted : telar::metrics::kExitFinished);
    }
    status = outcome.status();
  }
  const telar::v1::FailureClass failure = telar::train::class_of(status);
  spdlog::error("{}: {}", telar::v1::FailureClass_Name(failure), std::string(status.message()));
  telar::v1::RankEvent event;
  event.mutable_failure()->set_failure_class(failure);
  event.mutable_failure()->set_message(telar::well_formed(std::string(status.message())));
  const absl::Status written = (*events)->write(event);
  if (!written.ok()) spdlog::error("{}", std::string(written.message()));
  leave(telar::metrics::exit_code(failure));
}
