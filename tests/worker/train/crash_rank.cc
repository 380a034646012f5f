// A rank as telar-rank is, except that its checkpoints go through a file system in which one operation goes wrong:
//   train_crash_rank --plan FILE --events FILE [--fault kill|full|error:NUMBER]
// kill: SIGKILL before the operation; full: it and all later ones that need space find none; error: it alone fails.
// Behind the run it appends the number of operations to the events file as a line {"operations": N}.
#include <google/protobuf/util/json_util.h>

#include <csignal>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "tests/fakes/struck_files.h"
#include "worker/metrics/exit_codes.h"
#include "worker/train/event_log.h"
#include "worker/train/failure.h"
#include "worker/train/run.h"

namespace {

struct Fault {
  std::string kind;
  int64_t at = -1;
};

absl::Status strike(const Fault& fault, int64_t number, const std::string& what) {
  if (fault.kind == "kill" && number == fault.at) raise(SIGKILL);
  if (fault.kind == "error" && number == fault.at) return absl::DataLossError(what + ": Input/output error");
  const bool needs_space = what.starts_with("create") || what.starts_with("write") || what.starts_with("mkdir");
  if (fault.kind == "full" && number >= fault.at && needs_space) {
    return absl::ResourceExhaustedError(what + ": No space left on device");
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  std::string plan_path, events_path;
  Fault fault;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--plan") plan_path = value;
    if (name == "--events") events_path = value;
    if (name == "--fault") {
      fault.kind = value.substr(0, value.find(':'));
      if (!absl::SimpleAtoi(value.substr(value.find(':') + 1), &fault.at)) return 2;
    }
  }
  std::ifstream file(plan_path);
  std::stringstream text;
  text << file.rdbuf();
  telar::v1::RankPlan plan;
  if (!google::protobuf::util::JsonStringToMessage(text.str(), &plan).ok()) return 2;
  auto events = telar::train::EventLog::open(events_path);
  if (!events.ok()) return 2;

  telar::fakes::StruckFiles files(telar::checkpoint::FileSystem::posix(),
                                  [&](int64_t number, const std::string& what) { return strike(fault, number, what); });
  telar::train::RunSeams seams;
  seams.checkpoints = &files;
  const std::atomic<bool> stop{false};
  const auto outcome = telar::train::run(plan, **events, stop, telar::train::Replica::Execution::kLanes, seams);
  std::ofstream(events_path, std::ios::app) << "{\"operations\": " << files.operations() << "}\n";
  if (outcome.ok()) std::quick_exit(telar::metrics::kExitFinished);
  std::ofstream(events_path, std::ios::app) << "{\"error\": \"" << std::string(outcome.status().message()) << "\"}\n";
  std::quick_exit(telar::metrics::exit_code(telar::train::class_of(outcome.status())));
}
