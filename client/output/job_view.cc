#include "client/output/job_view.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/output/format.h"
#include "client/output/view_line.h"

namespace telar::client {
namespace {

constexpr size_t kLabel = 9;       // Columns.
constexpr size_t kMostRanks = 12;  // Shown.
constexpr size_t kMostConditions = 3;
constexpr size_t kLeastEvents = 3;  // Lines that ranks leave for them.
constexpr size_t kPlotRows = 4;
constexpr double kOldNews = 12;  // Seconds; the coordinator says something every five.
constexpr double kWorthAShare = 0.005;
constexpr const char* kSlow = "straggler";

std::string as_percent(double share) { return absl::StrFormat("%.1f%%", 100 * share); }

class JobView {
 public:
  JobView(const v1::Job& job, const JobHistory& history, int64_t now_seconds, double age, const ViewStyle& style)
      : job_(job), history_(history), now_(now_seconds), age_(age), style_(style) {}

  std::vector<std::string> draw() {
    title();
    facts();
    troubles();
    if (job_.progress().total_steps() > 0) {
      blank();
      steps();
      losses();
      speed();
      waits();
    }
    memory();
    checkpoint();
    ranks();
    events();
    if (lines_.size() > style_.height) lines_.resize(style_.height);
    return std::move(lines_);
  }

 private:
  ViewLine line() const { return {style_.width, style_.colour}; }
  ViewLine labelled(const std::string& label) const {
    ViewLine made = line();
    made.add(label + std::string(label.size() < kLabel ? kLabel - label.size() : 1, ' '), ViewLine::kDim);
    return made;
  }
  void put(const ViewLine& made) { lines_.push_back(made.text()); }
  void blank() { lines_.emplace_back(); }
  bool live() const { return !is_terminal(job_.state()); }

  void title() {
    ViewLine made = line();
    made.add(id_of(job_.name()), ViewLine::kBold);
    const std::string label = one_line(job_.spec().name());
    const std::string state = v1::Job::State_Name(job_.state());
    double ran = job_.run_seconds();
    if (job_.state() == v1::Job::RUNNING) ran += age_;
    const std::string time = ran > 0 ? "ran " + duration(ran) : "for " + age(job_.create_time(), now_);
    // The state is worth more than the rest of a long name.
    const size_t room = made.left() > state.size() + 2 ? made.left() - state.size() - 2 : 0;
    if (!label.empty() && label != id_of(job_.name()) && room > 4) made.add("  " + cut(label, room - 2));
    if (age_ > kOldNews) made.add("  no news for " + duration(age_), ViewLine::kRed);
    const bool roomy = made.left() >= state.size() + time.size() + 4;
    put(made.add_right(roomy ? state + "  " + time : state, state_colour(job_.state())));
  }

  void facts() {
    std::vector<std::string> all;
    if (job_.epoch() > 0) all.push_back(absl::StrCat("epoch ", job_.epoch()));
    std::set<std::string> nodes;
    for (const v1::RankPlacement& place : job_.placement()) nodes.insert(place.node());
    const v1::ParallelSpec& parallel = job_.spec().parallel();
    const bool placed = job_.placement_size() > 0;
    const auto devices = placed ? static_cast<uint32_t>(job_.placement_size()) : job_.spec().resources().devices();
    const std::string model = placed ? one_line(job_.placement(0).device().model()) : "";
    const std::string kind = absl::AsciiStrToLower(v1::ResourceSpec::Kind_Name(job_.spec().resources().kind()));
    if (devices > 0) {
      all.push_back(absl::StrCat(
          devices, " x ", model.empty() ? kind : model,
          nodes.empty() ? "" : absl::StrCat(" on ", nodes.size(), nodes.size() == 1 ? " node" : " nodes")));
    }
    const uint32_t replicas = job_.data_parallel() > 0 ? job_.data_parallel() : parallel.data();
    if (replicas > 0) {
      all.push_back(absl::StrCat("data ", replicas, " tensor ", parallel.tensor(), " pipeline ", parallel.pipeline()));
    }
    if (job_.parameters() > 0) all.push_back(count(static_cast<double>(job_.parameters())) + " parameters");
    if (job_.spec().precision().compute() != v1::PRECISION_UNSPECIFIED) {
      all.push_back(absl::AsciiStrToLower(v1::Precision_Name(job_.spec().precision().compute())));
    }
    if (job_.restarts() + job_.node_restarts() > 0) {
      all.push_back(absl::StrCat("restarts ", job_.restarts() + job_.node_restarts()));
    }
    ViewLine made = line();
    for (size_t i = 0; i < all.size(); ++i) made.add((i == 0 ? "" : ", ") + all[i]);
    if (!all.empty()) put(made);
  }

  // Why it is not well, or not running.
  void troubles() {
    const bool told = job_.state() == v1::Job::RUNNING || job_.state() == v1::Job::SUCCEEDED;
    if (!told && !job_.message().empty()) put(line().add(one_line(job_.message()), state_colour(job_.state())));
    if (!job_.waiting().unblock().empty()) put(labelled("starts").add("once " + one_line(job_.waiting().unblock())));
    const auto most = std::min<size_t>(kMostConditions, static_cast<size_t>(job_.conditions_size()));
    for (size_t i = 0; live() && i < most; ++i) {
      const v1::Condition& one = job_.conditions(static_cast<int>(i));
      put(line().add(one.type() + ": ", ViewLine::kYellow).add(one_line(one.message())));
    }
  }

  void steps() {
    const v1::Progress& progress = job_.progress();
    const double share = static_cast<double>(progress.step()) / static_cast<double>(progress.total_steps());
    std::string text = absl::StrCat(" ", progress.step(), "/", progress.total_steps(), "  ", as_percent(share));
    if (live() && progress.eta_seconds() > 0) absl::StrAppend(&text, "  ETA ", duration(progress.eta_seconds()));
    ViewLine made = labelled("step");
    const size_t room = made.left() > text.size() + 10 ? made.left() - text.size() : 10;
    put(made.add(bar(share, std::min<size_t>(room, 60), style_.unicode), ViewLine::kGreen).add(text));
  }

  void losses() {
    const v1::Progress& progress = job_.progress();
    if (progress.step() == 0 || progress.loss() == 0) {
      put(labelled("loss").add("no step yet"));
      return;
    }
    std::string text = loss(progress.loss());
    if (history_.smoothed_loss()) absl::StrAppend(&text, "  smoothed ", loss(*history_.smoothed_loss()));
    absl::StrAppend(&text, "  first ", loss(progress.first_loss()));
    put(labelled("loss").add(text));
    if (const auto& eval = history_.eval()) {
      text = absl::StrCat(loss(eval->value), " at step ", eval->step);
      if (history_.best_eval()->step != eval->step) {
        absl::StrAppend(&text, ", best ", loss(history_.best_eval()->value), " at ", history_.best_eval()->step);
      }
      put(labelled("held out").add(text));
    } else if (progress.eval_loss() != 0) {
      put(labelled("held out").add(loss(progress.eval_loss())));
    }
    curve();
  }

  void curve() {
    if (history_.losses().size() < 2) return;
    const size_t scale = 8;  // Columns of figures on the right.
    if (style_.width < kLabel + scale + 10) return;
    const Plot drawn = plot(history_.losses(), style_.width - kLabel - scale, kPlotRows, style_.unicode);
    for (size_t row = 0; row < kPlotRows; ++row) {
      const double edge = row == 0 ? drawn.high : drawn.low;
      const std::string figure = row == 0 || row + 1 == kPlotRows ? absl::StrFormat(" %7.4g", edge) : "";
      put(labelled("").add(drawn.lines[row], ViewLine::kGreen).add(figure, ViewLine::kDim));
    }
  }

  void speed() {
    const v1::Progress& progress = job_.progress();
    if (progress.tokens_per_second() <= 0) return;
    std::string text = count(progress.tokens_per_second()) + " tokens/s";
    if (const double seconds = history_.shares().step_seconds; seconds > 0) {
      absl::StrAppend(&text, ", ", absl::StrFormat("%.3g", seconds), " s a step");
    }
    absl::StrAppend(&text, ", MFU ", mfu(progress));
    const double hardware = history_.hardware_share();
    if (progress.mfu() > 0 && hardware > 0) absl::StrAppend(&text, ", HFU ", as_percent(progress.mfu() * hardware));
    ViewLine made = labelled("speed").add(text);
    if (job_.forecast().tokens_per_second() > 0) {
      made.add("  forecast " + count(job_.forecast().tokens_per_second()), ViewLine::kDim);
    }
    put(made);
  }

  void waits() {
    if (history_.bubble() || history_.bubble_theory() > 0) {
      const std::string measured = history_.bubble() ? as_percent(*history_.bubble()) : "not measured yet";
      put(labelled("bubble").add(measured + ", by the schedule " + as_percent(history_.bubble_theory())));
    }
    const JobHistory::Shares shares = history_.shares();
    if (shares.step_seconds > 0) {
      put(labelled("waits").add(
          absl::StrCat("data ", as_percent(shares.data_wait), ", saves ", as_percent(shares.checkpoint_stall))));
    }
    ViewLine made = labelled("time");
    bool first = true;
    for (const v1::PhaseTime& part : history_.parts()) {
      if (part.seconds() < kWorthAShare) break;
      const std::string text = absl::StrCat(first ? "" : ", ", part.phase(), " ", as_percent(part.seconds()));
      if (width_of(text) > made.left()) break;
      made.add(text);
      first = false;
    }
    if (!first) put(made);
  }

  // Bytes of the fullest device.
  uint64_t peak_bytes() const {
    uint64_t most = 0, sum = 0;
    for (const v1::RankPlacement& place : job_.placement()) most = std::max(most, place.progress().memory_bytes());
    if (most > 0) return most;
    for (const v1::MemoryUse& use : job_.memory()) sum += use.memory_class() == "host" ? 0 : use.bytes();
    return sum;
  }

  void memory() {
    const uint64_t peak = peak_bytes();
    if (peak == 0) return;
    uint64_t capacity = 0, forecast = 0;
    for (const v1::RankPlacement& place : job_.placement())
      capacity = std::max(capacity, place.device().memory_bytes());
    for (const v1::StageMemory& stage : job_.forecast().memory()) forecast = std::max(forecast, stage.device_bytes());
    std::string text = capacity > 0 ? absl::StrCat(" ", bytes(peak), " of ", bytes(capacity)) : bytes(peak);
    if (forecast > 0) absl::StrAppend(&text, ", forecast ", bytes(forecast));
    ViewLine made = labelled("memory");
    if (capacity > 0) {
      const size_t room = made.left() > text.size() + 10 ? made.left() - text.size() : 10;
      const double of = 1 / static_cast<double>(capacity), share = static_cast<double>(peak) * of;
      const auto mark = forecast > 0 ? std::optional(static_cast<double>(forecast) * of) : std::nullopt;
      made.add(bar(share, std::min<size_t>(room, 40), style_.unicode, mark),
               share > 0.95 ? ViewLine::kRed : ViewLine::kGreen);
    }
    put(made.add(text));
  }

  void checkpoint() {
    if (job_.progress().checkpoint_path().empty()) return;
    put(labelled("saved").add(absl::StrCat("step ", job_.progress().checkpoint_step())));
  }

  // What is wrong with a rank: such ones are shown first.
  static std::string mark_of(const v1::RankPlacement& place) {
    if (place.progress().hung()) return "HUNG";
    if (place.state() == v1::RankPlacement::LOST) return " ";  // Its state says it.
    if (place.state() == v1::RankPlacement::EXITED && place.exit_code() != 0) {
      return absl::StrCat(place.exit_code());
    }
    return place.progress().straggler() ? kSlow : "";
  }

  void ranks() {
    if (job_.placement().empty() || !live()) return;
    // Blank, heading, and a line for those that are not shown.
    const size_t used = lines_.size() + 3 + (history_.notes().empty() ? 0 : kLeastEvents + 1);
    const size_t room = style_.height > used ? style_.height - used : 0;
    const size_t shown = std::min({room, kMostRanks, static_cast<size_t>(job_.placement_size())});
    if (shown == 0) return;
    std::vector<const v1::RankPlacement*> order;
    for (const v1::RankPlacement& place : job_.placement()) order.push_back(&place);
    std::stable_partition(order.begin(), order.end(), [](const auto* place) { return !mark_of(*place).empty(); });
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown),
              [](const auto* one, const auto* other) { return one->rank() < other->rank(); });
    blank();
    Table table({"RANK", "STATE", "STEP", "SILENT", "S/STEP", "OWN", "MEMORY", "NODE", "DEVICE", ""});
    for (size_t i = 0; i < shown; ++i) table.add(row_of(*order[i]));
    put_table(table, shown, order);
    if (shown < order.size()) put(line().add(rest_of(order, shown), ViewLine::kDim));
  }

  std::vector<std::string> row_of(const v1::RankPlacement& place) const {
    const v1::RankProgress& told = place.progress();
    const bool known = place.has_progress() && told.step() > 0;
    const auto seconds = [](double value) { return value > 0 ? absl::StrFormat("%.3g", value) : std::string("-"); };
    return {absl::StrCat(place.rank()),
            std::string(absl::StripTrailingAsciiWhitespace(
                absl::StrCat(v1::RankPlacement::State_Name(place.state()), " ", mark_of(place)))),
            known ? absl::StrCat(told.step()) : "-",
            place.has_progress() ? duration(told.silent_seconds() + age_) : "-",
            seconds(told.step_seconds()),
            seconds(told.own_seconds()),
            told.memory_bytes() > 0 ? bytes(told.memory_bytes()) : "-",
            one_line(place.node()),
            absl::StrCat(absl::AsciiStrToLower(v1::ResourceSpec::Kind_Name(place.device().kind())), ":",
                         place.device().index()),
            one_line(place.message())};
  }

  void put_table(const Table& table, size_t rows, const std::vector<const v1::RankPlacement*>& order) {
    const std::string text = table.text(true);
    size_t at = 0;
    for (size_t i = 0; i <= rows; ++i) {
      const size_t end = text.find('\n', at);
      const char* colour = ViewLine::kNone;
      if (i == 0) colour = ViewLine::kDim;
      if (i > 0 && !mark_of(*order[i - 1]).empty()) {
        colour = mark_of(*order[i - 1]) == kSlow ? ViewLine::kYellow : ViewLine::kRed;
      }
      put(line().add(text.substr(at, end - at), colour));
      at = end + 1;
    }
  }

  static std::string rest_of(const std::vector<const v1::RankPlacement*>& order, size_t shown) {
    std::map<std::string, size_t> states;
    for (size_t i = shown; i < order.size(); ++i) ++states[v1::RankPlacement::State_Name(order[i]->state())];
    std::string text = absl::StrCat("and ", order.size() - shown, " more:");
    for (const auto& [state, number] : states) absl::StrAppend(&text, " ", number, " ", state);
    return text;
  }

  void events() {
    const auto& notes = history_.notes();
    if (lines_.size() + 2 > style_.height || notes.empty()) return;
    blank();
    const size_t shown = std::min(notes.size(), style_.height - lines_.size());
    for (size_t i = notes.size() - shown; i < notes.size(); ++i) {
      const int64_t second = ((notes[i].second % 86400) + 86400) % 86400;
      put(line()
              .add(absl::StrFormat("%02d:%02d:%02d  ", second / 3600, second / 60 % 60, second % 60), ViewLine::kDim)
              .add(notes[i].text));
    }
  }

  const v1::Job& job_;
  const JobHistory& history_;
  const int64_t now_;
  const double age_;
  const ViewStyle& style_;
  std::vector<std::string> lines_;
};

}  // namespace

const char* state_colour(v1::Job::State state) {
  if (state == v1::Job::FAILED || state == v1::Job::FAILING) return ViewLine::kRed;
  if (state == v1::Job::RUNNING || state == v1::Job::SUCCEEDED) return ViewLine::kGreen;
  return ViewLine::kYellow;
}

std::vector<std::string> job_view(const v1::Job& job, const JobHistory& history, int64_t now_seconds, double age,
                                  const ViewStyle& style) {
  return JobView(job, history, now_seconds, age, style).draw();
}

}  // namespace telar::client
