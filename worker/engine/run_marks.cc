#include "worker/engine/run_marks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace telar::engine {
namespace {

// A mark takes a lane about two microseconds, so one in four milliseconds 0.05 % of its time. Ops take longer than this
// says, on any device of today.
constexpr double kSecondsApart = 4e-3;
constexpr double kFlopsPerSecond = 1e15;
constexpr double kBytesPerSecond = 5e12;      // Of memory.
constexpr double kLinkBytesPerSecond = 5e11;  // Between devices, or to the host.

constexpr uint32_t kRunSlot =
    0;  // The run twice, and 1 where each op leaves a mark. Behind it a slot a lane: OpId + 1.
constexpr uint64_t kRunsApart = uint64_t{1} << 31;  // Such numbers go round.

double seconds_of(const Op& op) {
  const bool computes = op.lane.kind == LaneKind::kCompute;
  return op.cost.flops / kFlopsPerSecond + op.cost.bytes / (computes ? kBytesPerSecond : kLinkBytesPerSecond);
}

// The last op of each lane, and some before.
std::vector<bool> spread(const Program& program, const Plan& plan) {
  std::vector<bool> marked(plan.ops.size(), false);
  std::vector<double> since(plan.lanes.size(), 0);
  std::vector<OpId> last(plan.lanes.size(), kNoOp);
  for (OpId op = 0; op < plan.ops.size(); ++op) {
    const uint32_t lane = plan.ops[op].lane;
    last[lane] = op;
    since[lane] += seconds_of(program.ops()[op]);
    if (since[lane] < kSecondsApart) continue;
    marked[op] = true;
    since[lane] = 0;
  }
  for (OpId op : last) {
    if (op != kNoOp) marked[op] = true;
  }
  return marked;
}

// By event: the op that records it.
std::vector<OpId> recorders(const Plan& plan) {
  std::vector<OpId> recorders(plan.events, kNoOp);
  for (OpId op = 0; op < plan.ops.size(); ++op) {
    if (plan.ops[op].record != kNoEvent) recorders[plan.ops[op].record] = op;
  }
  return recorders;
}

}  // namespace

std::vector<OpRange> may_be_running(const Plan& plan, std::span<const OpId> reached,
                                    const std::function<bool(OpId)>& leaves) {
  const std::vector<OpId> recorder = recorders(plan);
  // By lane, one past the last op that is done: what its lane has marked, and what others waited for that are done.
  std::vector<OpId> done(plan.lanes.size(), 0);
  for (size_t lane = 0; lane < reached.size(); ++lane) done[lane] = reached[lane] == kNoOp ? 0 : reached[lane] + 1;
  for (auto op = static_cast<OpId>(plan.ops.size()); op-- > 0;) {
    if (op >= done[plan.ops[op].lane]) continue;
    for (uint32_t event : plan.ops[op].waits) {
      OpId& end = done[plan.ops[recorder[event]].lane];
      end = std::max(end, recorder[event] + 1);
    }
  }
  // By lane, the first op that has not begun: behind a mark that is not there, or waiting for such an op.
  std::vector<OpId> stop(plan.lanes.size(), kNoOp);
  std::vector<OpRange> ranges(plan.lanes.size());
  for (OpId op = 0; op < plan.ops.size(); ++op) {
    const uint32_t lane = plan.ops[op].lane;
    if (op < done[lane] || op >= stop[lane]) continue;
    const auto not_begun = [&](uint32_t event) { return recorder[event] >= stop[plan.ops[recorder[event]].lane]; };
    if (std::ranges::any_of(plan.ops[op].waits, not_begun)) {
      stop[lane] = op;
      continue;
    }
    if (leaves(op)) stop[lane] = op + 1;
    OpRange& range = ranges[lane];
    if (range.count++ == 0) range.first = op;
    range.last = op;
  }
  return ranges;
}

RunMarks::RunMarks(const Program& program, const Plan& plan, MarkDensity density)
    : program_(program),
      plan_(plan),
      marked_(density == MarkDensity::kAll ? std::vector<bool>(plan.ops.size(), true) : spread(program, plan)) {}

absl::StatusOr<std::unique_ptr<RunMarks>> RunMarks::create(const Program& program, const Plan& plan,
                                                           backend::Device& device, MarkDensity density) {
  if (density == MarkDensity::kNone) return nullptr;
  absl::StatusOr<std::unique_ptr<backend::Marks>> marks =
      device.create_marks(static_cast<uint32_t>(plan.lanes.size()) + 1);
  if (absl::IsUnimplemented(marks.status())) return nullptr;
  if (!marks.ok()) return marks.status();
  std::unique_ptr<RunMarks> made(new RunMarks(program, plan, density));
  made->marks_ = *std::move(marks);
  return made;
}

void RunMarks::begin(uint64_t run, bool each_op, backend::Stream& origin) {
  run_ = run;
  std::vector<backend::Marks::Mark> marks = {{kRunSlot, static_cast<uint32_t>(2 * run + (each_op ? 1 : 0))}};
  for (uint32_t lane = 0; lane < plan_.lanes.size(); ++lane) marks.push_back({lane + 1, 0});
  marks_->leave(origin, marks);
}

void RunMarks::behind(OpId op, bool each_op, backend::Stream& lane) {
  if (!leaves(op, each_op)) return;
  const backend::Marks::Mark mark{plan_.ops[op].lane + 1, op + 1};
  marks_->leave(lane, std::span(&mark, 1));
}

RunMarks::Place RunMarks::place() const {
  Place place;
  const uint32_t begun = marks_->read(kRunSlot);
  if (begun == 0) return place;
  place.run = run_ - (run_ - begun / 2) % kRunsApart;
  std::vector<OpId> reached;
  for (uint32_t lane = 0; lane < plan_.lanes.size(); ++lane) {
    const uint32_t mark = marks_->read(lane + 1);
    reached.push_back(mark == 0 ? kNoOp : mark - 1);
  }
  place.ranges = may_be_running(plan_, reached, [&](OpId op) { return leaves(op, begun % 2 == 1); });
  return place;
}

std::string RunMarks::describe(const Place& place) const {
  std::string text;
  for (const OpRange& range : place.ranges) {
    if (range.count == 0) continue;
    if (!text.empty()) text += ", or ";
    if (range.count > 1) absl::StrAppend(&text, "one of ", range.count, " ops from ");
    text += program_.describe(range.first);
    if (range.count > 1) absl::StrAppend(&text, " to ", program_.describe(range.last));
  }
  return text;
}

}  // namespace telar::engine
