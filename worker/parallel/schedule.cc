#include "worker/parallel/schedule.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace telar::parallel {
namespace {

constexpr std::array<std::pair<ActionKind, std::string_view>, 11> kNames = {{
    {ActionKind::kForward, "F"},
    {ActionKind::kBackward, "B"},
    {ActionKind::kInputGrad, "I"},
    {ActionKind::kWeightGrad, "W"},
    {ActionKind::kSendForward, "SEND_F"},
    {ActionKind::kRecvForward, "RECV_F"},
    {ActionKind::kSendBackward, "SEND_B"},
    {ActionKind::kRecvBackward, "RECV_B"},
    {ActionKind::kUnshard, "UNSHARD"},
    {ActionKind::kReshard, "RESHARD"},
    {ActionKind::kReduceGrad, "REDUCE_GRAD"},
}};

constexpr int kMaxNumber = 999999;  // Of stages and micro-batches; keeps every product of two of them in an int64.

bool has_micro_batch(ActionKind kind) { return is_compute(kind) || is_transfer(kind); }

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return text.substr(text.size());
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// Takes the digits off the front of `text`. Nothing if there are none or the number is too large.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  size_t digits = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
    value = value * 10 + (text[digits] - '0');
    if (value > kMaxNumber) return std::nullopt;
  }
  if (digits == 0) return std::nullopt;
  text.remove_prefix(digits);
  return value;
}

std::optional<Action> parse_action(std::string_view text) {
  const std::optional<int> stage = take_number(text);
  if (!stage) return std::nullopt;
  const std::string_view name = text.substr(0, std::min(text.find_first_of("0123456789"), text.size()));
  const auto* found =
      std::find_if(kNames.begin(), kNames.end(), [&](const auto& entry) { return entry.second == name; });
  if (found == kNames.end()) return std::nullopt;
  text.remove_prefix(name.size());
  if (!has_micro_batch(found->first))
    return text.empty() ? std::optional(Action{*stage, found->first, -1}) : std::nullopt;
  const std::optional<int> micro_batch = take_number(text);
  if (!micro_batch || !text.empty()) return std::nullopt;
  return Action{*stage, found->first, *micro_batch};
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string quoted(std::string_view text) {
  constexpr size_t kMax = 40;
  return text.size() <= kMax ? absl::StrCat("'", std::string(text), "'")
                             : absl::StrCat("'", std::string(text.substr(0, kMax)), "...'");
}

// Appends what one line says. `place` says where each stage was seen first.
absl::Status parse_line(std::string_view line, int rank, std::vector<std::string>& place, Schedule& schedule) {
  schedule.actions.emplace_back();
  int number = 0;
  for (const std::string_view raw : split(line, ',')) {
    ++number;
    const std::string_view entry = trimmed(raw);
    if (entry.empty()) continue;
    const std::string where =
        absl::StrCat("schedule line ", rank + 1, ", entry ", number, " (column ", entry.data() - line.data() + 1, ")");
    const std::optional<Action> action = parse_action(entry);
    if (!action) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": ", quoted(entry), " is not <stage><F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B><micro-batch> or ",
          "<stage><UNSHARD|RESHARD|REDUCE_GRAD>, with numbers of at most ", kMaxNumber));
    }
    if (static_cast<size_t>(action->stage) >= place.size()) {
      place.resize(action->stage + 1);
      schedule.rank_of_stage.resize(action->stage + 1, -1);
    }
    int& owner = schedule.rank_of_stage[action->stage];
    if (owner >= 0 && owner != rank) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", quoted(entry), " puts stage ", action->stage,
                                                     " on rank ", rank, ", but ", place[action->stage],
                                                     " has it on rank ", owner, "; a stage lives on one rank"));
    }
    if (owner < 0) place[action->stage] = where;
    owner = rank;
    schedule.micro_batches = std::max(schedule.micro_batches, action->micro_batch + 1);
    schedule.actions.back().push_back(*action);
  }
  return absl::OkStatus();
}

}  // namespace

bool is_compute(ActionKind kind) { return kind <= ActionKind::kWeightGrad; }

bool is_transfer(ActionKind kind) { return kind >= ActionKind::kSendForward && kind <= ActionKind::kRecvBackward; }

bool is_input_grad(ActionKind kind) { return kind == ActionKind::kBackward || kind == ActionKind::kInputGrad; }

std::string to_text(const Action& action) {
  std::string text = absl::StrCat(action.stage, std::string(kNames[static_cast<size_t>(action.kind)].second));
  if (has_micro_batch(action.kind)) absl::StrAppend(&text, action.micro_batch);
  return text;
}

std::string to_text(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& actions : schedule.actions) {
    for (size_t i = 0; i < actions.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : ",", to_text(actions[i]));
    text += '\n';
  }
  return text;
}

absl::StatusOr<Schedule> parse_schedule(std::string_view text) {
  std::vector<std::string_view> lines = split(text, '\n');
  while (!lines.empty() && trimmed(lines.back()).empty()) lines.pop_back();
  if (lines.empty()) return absl::InvalidArgumentError("schedule: the text is empty; it has one line a pipeline rank");
  Schedule schedule;
  schedule.ranks = static_cast<int>(lines.size());
  std::vector<std::string> place;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const absl::Status status = parse_line(lines[rank], rank, place, schedule);
    if (!status.ok()) return status;
  }
  schedule.stages = static_cast<int>(schedule.rank_of_stage.size());
  const auto missing = std::find(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), -1);
  if (schedule.stages == 0) return absl::InvalidArgumentError("schedule: no line has an action");
  if (missing != schedule.rank_of_stage.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "schedule: stage ", missing - schedule.rank_of_stage.begin(), " is on no line, but stage ", schedule.stages - 1,
        " is (", place.back(), "); ", std::count(missing, schedule.rank_of_stage.end(), -1), " of ", schedule.stages,
        " stages are missing"));
  }
  return schedule;
}

absl::Status check_shape(const Schedule& schedule) {
  if (schedule.ranks < 1 || schedule.stages < 1 || schedule.micro_batches < 1) {
    return absl::InvalidArgumentError(absl::StrCat("schedule: ", schedule.ranks, " ranks, ", schedule.stages,
                                                   " stages, ", schedule.micro_batches,
                                                   " micro-batches: each must be at least 1"));
  }
  if (schedule.actions.size() != static_cast<size_t>(schedule.ranks) ||
      schedule.rank_of_stage.size() != static_cast<size_t>(schedule.stages)) {
    return absl::InvalidArgumentError(absl::StrCat("schedule: lists of ", schedule.actions.size(), " ranks for ",
                                                   schedule.ranks, " ranks, places of ", schedule.rank_of_stage.size(),
                                                   " stages for ", schedule.stages, " stages"));
  }
  for (int stage = 0; stage < schedule.stages; ++stage) {
    if (schedule.rank_of_stage[stage] < 0 || schedule.rank_of_stage[stage] >= schedule.ranks) {
      return absl::InvalidArgumentError(absl::StrCat("schedule: stage ", stage, " is on rank ",
                                                     schedule.rank_of_stage[stage], " of ", schedule.ranks));
    }
  }
  int64_t total = 0;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    total += static_cast<int64_t>(schedule.actions[rank].size());
    for (size_t i = 0; i < schedule.actions[rank].size(); ++i) {
      const Action& action = schedule.actions[rank][i];
      const bool fits = has_micro_batch(action.kind)
                            ? action.micro_batch >= 0 && action.micro_batch < schedule.micro_batches
                            : action.micro_batch == -1;
      if (action.stage < 0 || action.stage >= schedule.stages || !fits) {
        return absl::InvalidArgumentError(absl::StrCat("schedule rank ", rank, ", ", to_text(action), " (entry ", i + 1,
                                                       "): there are stages 0 to ", schedule.stages - 1,
                                                       " and micro-batches 0 to ", schedule.micro_batches - 1));
      }
    }
  }
  const int64_t cells = int64_t{schedule.stages} * schedule.micro_batches;
  if (cells > total) {
    return absl::InvalidArgumentError(absl::StrCat("schedule: ", schedule.stages, " stages x ", schedule.micro_batches,
                                                   " micro-batches = ", cells, " forwards, but there are only ", total,
                                                   " actions in all"));
  }
  return absl::OkStatus();
}

}  // namespace telar::parallel
