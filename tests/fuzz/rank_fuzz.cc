// What ranks leave behind and their worker reads: events, logs, flight files, the probe's reports, the curves of a run
// that goes on.
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/fuzz/input.h"
#include "worker/agent/event_file.h"
#include "worker/flight/reader.h"
#include "worker/metrics/rank_metrics.h"
#include "worker/probe/report.h"
#include "worker/train/metrics_file.h"

namespace {

using namespace telar;  // NOLINT: what is fuzzed.
using fuzz::require;

constexpr size_t kMostAtOnce = 256;  // Bytes; small, so that there are many pieces.
constexpr uint64_t kStep = 100;      // That a run goes on from.
constexpr size_t kMostCalls = 64;

void read_events(std::string_view text) {
  const fuzz::MemoryFile file(text);
  prometheus::Registry registry;
  metrics::RankMetrics figures(registry, "a");
  v1::RankPlan plan;
  plan.set_epoch(1);
  plan.set_world_size(1);
  figures.add("job", plan);
  agent::EventCursor cursor;
  while (true) {
    const auto events = agent::read_events(file.path(), cursor, kMostAtOnce);
    if (events.empty()) break;
    for (const v1::RankEvent& event : events) figures.observe("job", 1, 0, event);
  }
  const auto lines = static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
  require(cursor.line == lines, "every whole line is an event");
  require(cursor.byte == text.rfind('\n') + 1, "and no byte of another was taken");  // npos + 1 is 0.
  const agent::EventCursor found = agent::find_line(file.path(), lines);
  require(found.line == cursor.line && found.byte == cursor.byte, "the line is found again");
  (void)prometheus::TextSerializer().Serialize(registry.Collect());
  figures.forget("job", 1, 0);
  (void)agent::read_outcome(file.path());
  (void)agent::last_log_line(file.path());
}

void read_flight(std::string_view bytes) {
  const fuzz::MemoryFile file(bytes);
  (void)flight::glance(file.path());
  const auto calls = flight::read_calls(file.path(), kMostCalls);
  if (!calls.ok()) return;
  for (const flight::Call& call : *calls) require(call.group.size() <= bytes.size(), "names come from the file");
}

void read_report(const std::string& text) {
  const auto report = probe::parse_report(text);
  if (!report) return;
  const std::string again = probe::to_text(*report);
  const auto same = probe::parse_report(again);
  require(same && probe::to_text(*same) == again, "a report survives being written");
}

// Whatever a crash or a person left in the file, a run that goes on keeps what it can and writes on.
void go_on(const fuzz::Folder& folder, std::string_view text) {
  folder.write("metrics.jsonl", text);
  const std::string path = folder.path("");
  require(train::MetricsFile::open(path, kStep).ok(), "the file opens");
  const auto read = [&] {
    std::ifstream in(folder.path("metrics.jsonl"));
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string once = read();
  require(train::MetricsFile::open(path, kStep).ok() && read() == once, "what was kept is kept again");
  std::istringstream lines(once);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    require(json.is_object(), "each line is an object");
    const auto step = json.find("step");
    require(step == json.end() || (step->is_number_unsigned() && step->get<uint64_t>() <= kStep), "of a step before");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  fuzz::Input input(data, size);
  switch (input.byte() % 4) {
    case 0:
      read_events(input.rest());
      break;
    case 1:
      read_flight(input.rest());
      break;
    case 2:
      read_report(std::string(input.rest()));
      break;
    default:
      go_on(folder, input.rest());
  }
  return 0;
}
