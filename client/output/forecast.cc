#include "client/output/forecast.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/output/format.h"
#include "client/output/table.h"

namespace telar::client {
namespace {

std::string percent(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.1f%%", 100 * part / whole) : std::string("-");
}
std::string milliseconds(double seconds) { return absl::StrFormat("%.1f ms", 1e3 * seconds); }
std::string gib(uint64_t bytes) { return absl::StrFormat("%.2f", static_cast<double>(bytes) / (1 << 30)); }

size_t fullest(const v1::Forecast& forecast) {
  const auto at = std::max_element(
      forecast.ranks().begin(), forecast.ranks().end(),
      [](const v1::RankForecast& a, const v1::RankForecast& b) { return a.total_bytes() < b.total_bytes(); });
  return static_cast<size_t>(at - forecast.ranks().begin());
}

std::vector<size_t> shown_ranks(const v1::Forecast& forecast, bool wide) {
  const auto count = static_cast<size_t>(forecast.ranks_size());
  std::set<size_t> shown = {0, fullest(forecast), count - 1};
  for (size_t i = 0; wide && i < count; ++i) shown.insert(i);
  return {shown.begin(), shown.end()};
}

std::string memory_table(const v1::Forecast& forecast, const std::vector<size_t>& shown, bool header) {
  std::vector<std::string> classes;
  for (const size_t rank : shown) {
    for (const v1::MemoryForecast& memory : forecast.ranks(static_cast<int>(rank)).memory()) {
      if (std::find(classes.begin(), classes.end(), memory.memory_class()) == classes.end()) {
        classes.push_back(memory.memory_class());
      }
    }
  }
  std::vector<std::string> titles = {"STAGE RANK", "LAYERS"};
  for (const std::string& one : classes) titles.push_back(absl::AsciiStrToUpper(one));
  titles.emplace_back("GIB IN ALL");
  titles.emplace_back("OF DEVICE");
  Table table(titles);
  for (const size_t index : shown) {
    const v1::RankForecast& rank = forecast.ranks(static_cast<int>(index));
    std::vector<std::string> row = {absl::StrCat(rank.pipeline_rank()), absl::StrCat(rank.layers())};
    for (const std::string& name : classes) {
      std::string cell = "-";
      for (const v1::MemoryForecast& memory : rank.memory()) {
        if (memory.memory_class() == name) cell = gib(memory.bytes());
      }
      row.push_back(cell);
    }
    row.push_back(gib(rank.total_bytes()));
    row.push_back(percent(static_cast<double>(rank.total_bytes()), static_cast<double>(forecast.device_bytes())));
    table.add(std::move(row));
  }
  return table.text(header);
}

std::string time_table(const v1::Forecast& forecast, const std::vector<size_t>& shown, bool header) {
  Table table(
      {"STAGE RANK", "FORWARD", "BACKWARD", "RECOMPUTE", "OPTIMIZER", "GRADIENTS", "TENSOR", "PIPELINE", "OTHER"});
  for (const size_t index : shown) {
    const v1::RankForecast& rank = forecast.ranks(static_cast<int>(index));
    const auto share = [&](double seconds) { return percent(seconds, forecast.step_seconds()); };
    table.add({absl::StrCat(rank.pipeline_rank()), share(rank.forward()), share(rank.backward()),
               share(rank.recompute()), share(rank.optimizer()), share(rank.exposed_gradients()),
               share(rank.exposed_tensor()), share(rank.exposed_pipeline()), share(rank.other())});
  }
  return table.text(header);
}

std::string mfu_of(const v1::Forecast& forecast) {
  return forecast.mfu() > 0 ? absl::StrFormat("%.1f%%", 100 * forecast.mfu()) : std::string("n/a");
}

// Of a job whose precision was left to us.
std::string precision_line(const v1::PrecisionChoice& choice) {
  return absl::StrCat("precision: auto chose ", absl::AsciiStrToLower(v1::Precision_Name(choice.compute())), ": ",
                      choice.reason(), "\n");
}

// "rates: h200 measured, its links measured, the network from a data sheet, not measured"
std::string rates_line(const v1::Forecast& forecast, const std::string& hardware) {
  std::string text = "rates:";
  for (const v1::UsedRates& used : forecast.rates()) {
    const std::string what = used.rates() == "device"   ? hardware
                             : used.rates() == "domain" ? std::string("links inside a domain")
                                                        : std::string("network");
    absl::StrAppend(&text, text.ends_with(':') ? " " : ", ", what,
                    used.origin() == v1::MEASURED     ? " measured"
                    : used.origin() == v1::DATA_SHEET ? " FROM A DATA SHEET, not measured"
                                                      : " of unknown origin");
  }
  return text + "\n";
}

std::string advice_lines(const v1::Forecast& forecast) {
  std::string text;
  for (const v1::Advice& advice : forecast.advice()) {
    absl::StrAppend(&text, absl::AsciiStrToLower(v1::Advice::Level_Name(advice.level())), ": ", advice.field(), ": ",
                    advice.text(), "\n");
  }
  return text;
}

}  // namespace

std::string layout_line(const v1::JobSpec& spec) {
  const v1::ParallelSpec& parallel = spec.parallel();
  std::string line = absl::StrCat("tp ", parallel.tensor(), " pp ", parallel.pipeline(), " dp ", parallel.data(),
                                  ", zero ", parallel.zero_stage(), ", micro ", spec.batch().micro());
  if (parallel.pipeline() > 1) {
    absl::StrAppend(&line, ", ", parallel.schedule());
    if (parallel.virtual_stages() > 1) absl::StrAppend(&line, " x ", parallel.virtual_stages());
  }
  if (spec.memory().recompute() > v1::MemorySpec::NONE) {
    absl::StrAppend(&line, ", recompute ",
                    absl::AsciiStrToLower(v1::MemorySpec::Recompute_Name(spec.memory().recompute())));
  }
  if (spec.memory().offload_activations()) absl::StrAppend(&line, ", activations offloaded");
  return line;
}

std::string forecast_page(const v1::Forecast& forecast, const std::string& hardware, bool wide, bool header) {
  const v1::JobSpec& spec = forecast.spec();
  const std::vector<size_t> shown = shown_ranks(forecast, wide);
  std::string text =
      absl::StrCat(spec.name(), ": ", count(static_cast<double>(forecast.parameters())), " parameters on ",
                   spec.resources().devices(), " x ", hardware, "\n", layout_line(spec), "; ", spec.batch().global(),
                   " x ", spec.batch().sequence_length(), " tokens a step\n");
  if (forecast.has_precision()) text += precision_line(forecast.precision());
  absl::StrAppend(&text, "\nmemory, GiB: ", forecast.fits() ? "fits" : "DOES NOT FIT", "\n");
  absl::StrAppend(&text, memory_table(forecast, shown, header), "\nstep ", milliseconds(forecast.step_seconds()),
                  ", of which\n", time_table(forecast, shown, header));
  if (spec.parallel().pipeline() > 1) {
    absl::StrAppend(&text, "pipeline waits ", percent(forecast.bubble(), 1),
                    " of a step on average; the schedule by itself ", percent(forecast.bubble_by_schedule(), 1), "\n");
  }
  absl::StrAppend(&text, "\ntokens/s ", count(forecast.tokens_per_second()), ", MFU ", mfu_of(forecast),
                  " (6 P + 6 L H d T FLOPs a token: output head counted, causal attention once, recompute not)\n");
  absl::StrAppend(&text, "run: ", count(static_cast<double>(forecast.tokens())), " tokens, ",
                  duration(forecast.run_seconds()), ", ", count(forecast.device_hours()), " device hours\n");
  const uint64_t all = spec.batch().global() / spec.parallel().data() / spec.batch().micro();
  if (forecast.recorded_micro_batches() < all) {
    absl::StrAppend(&text, "recorded with ", forecast.recorded_micro_batches(), " of ", all,
                    " micro-batches; the time of the rest is extrapolated\n");
  }
  absl::StrAppend(&text, rates_line(forecast, hardware));
  const std::string advice = advice_lines(forecast);
  if (!advice.empty()) absl::StrAppend(&text, "\n", advice);
  return text;
}

std::string search_page(const v1::LayoutSearch& search, const std::string& hardware, bool header) {
  std::string text = absl::StrCat(search.candidates(), " layouts looked at, for ", hardware, "\n");
  if (search.has_precision()) text += precision_line(search.precision());
  text += "\n";
  Table table({"", "STEP", "TOKENS/S", "MFU", "GIB", "BUBBLE", "LAYOUT"});
  for (int i = 0; i < search.best_size(); ++i) {
    const v1::Forecast& one = search.best(i);
    table.add({absl::StrCat(i + 1), milliseconds(one.step_seconds()), count(one.tokens_per_second()), mfu_of(one),
               gib(one.ranks(static_cast<int>(fullest(one))).total_bytes()), percent(one.bubble(), 1),
               layout_line(one.spec())});
  }
  absl::StrAppend(&text, table.text(header));
  for (int i = 0; i < search.reasons_size(); ++i) absl::StrAppend(&text, i + 1, ": ", search.reasons(i), "\n");
  if (search.dropped_size() > 0) absl::StrAppend(&text, "\ndropped:\n");
  for (const v1::DroppedLayouts& one : search.dropped()) {
    absl::StrAppend(&text, "  ", one.count(), ": ", one.reason(),
                    one.example().empty() ? "" : " (as " + one.example() + ")", "\n");
  }
  return text;
}

}  // namespace telar::client
