#include "client/output/checkpoints.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/output/format.h"
#include "client/output/message.h"
#include "client/output/table.h"

namespace telar::client {
namespace {

using Json = nlohmann::ordered_json;

std::string when(int64_t time) {
  google::protobuf::Timestamp stamp;
  stamp.set_seconds(time);
  return time == 0 ? "-" : time_text(stamp);
}

std::string eval_text(const std::optional<double>& value) {
  if (!value) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", *value);
  return text;
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

// JSON knows no infinity.
Json figure(double value) { return std::isfinite(value) ? Json(value) : Json(value > 0 ? "inf" : "nan"); }

std::string checkpoint_field(const std::string& name, const std::string& value) {
  return name + ":" + std::string(name.size() < 12 ? 12 - name.size() : 1, ' ') + value + "\n";
}

bool good(const CheckpointLine& line) { return line.state == "good"; }

bool differs(const DifferenceLine& line) { return line.difference != "none"; }

std::string tensors_by_kind(const std::vector<TensorLine>& tensors) {
  std::map<std::string, std::pair<size_t, uint64_t>> kinds;
  for (const TensorLine& one : tensors) {
    auto& [count, size] = kinds[absl::StrCat(one.kind, " ", one.dtype)];
    ++count;
    size += one.bytes;
  }
  std::string page;
  for (const auto& [kind, sum] : kinds) {
    absl::StrAppend(&page, "  ", kind, ": ", sum.first, " tensors, ", bytes(sum.second), "\n");
  }
  return page;
}

}  // namespace

std::string checkpoints_table(const std::vector<CheckpointLine>& lines, bool wide, bool header) {
  std::vector<std::string> titles = {"STEP", "SAVED", "SIZE", "EVAL LOSS", "LAYOUT", "EPOCH", "PINNED", "STATE"};
  if (wide) titles.emplace_back("PATH");
  Table table(titles);
  for (const CheckpointLine& line : lines) {
    std::vector<std::string> row = {absl::StrCat(line.step),
                                    when(line.time),
                                    bytes(line.bytes),
                                    eval_text(line.eval_loss),
                                    line.layout.empty() ? "-" : line.layout,
                                    good(line) ? absl::StrCat(line.epoch) : "-",
                                    line.pinned ? "yes" : "-",
                                    line.why.empty() ? line.state : absl::StrCat(line.state, ": ", one_line(line.why))};
    if (wide) row.push_back(one_line(line.path));
    table.add(std::move(row));
  }
  return table.text(header);
}

Json checkpoint_json(const CheckpointLine& line) {
  Json json = {{"path", line.path},       {"step", line.step},   {"state", line.state},
               {"time", when(line.time)}, {"bytes", line.bytes}, {"pinned", line.pinned}};
  if (!line.why.empty()) json["why"] = line.why;
  if (!good(line)) return json;
  json["eval_loss"] = line.eval_loss ? Json(*line.eval_loss) : Json();
  json["layout"] = line.layout;
  json["epoch"] = line.epoch;
  return json;
}

std::string checkpoint_page(const CheckpointPage& page, bool wide) {
  const CheckpointLine& line = page.line;
  std::string text =
      checkpoint_field("Checkpoint", one_line(line.path)) + checkpoint_field("Step", absl::StrCat(line.step));
  text += checkpoint_field("State", line.why.empty() ? line.state : absl::StrCat(line.state, ": ", one_line(line.why)));
  text += checkpoint_field("Saved", when(line.time)) + checkpoint_field("Size", bytes(line.bytes));
  text += checkpoint_field("Pinned", line.pinned ? "yes" : "no");
  if (!good(line)) return text;
  text += checkpoint_field("Job", one_line(page.job)) + checkpoint_field("Epoch", absl::StrCat(line.epoch));
  text += checkpoint_field("Eval loss", eval_text(line.eval_loss)) + checkpoint_field("Layout", line.layout);
  text += checkpoint_field("Samples", absl::StrCat(page.consumed_samples)) +
          checkpoint_field("Seed", absl::StrCat(page.seed));
  if (page.applied_steps) {
    std::string optimizer = absl::StrCat(*page.applied_steps, " steps applied, ", *page.skipped_steps, " skipped");
    if (page.loss_scale > 0) absl::StrAppend(&optimizer, ", loss scale ", page.loss_scale);
    text += checkpoint_field("Optimizer", optimizer);
  }
  text += checkpoint_field("Files", absl::StrCat(page.files));
  text += "Tensors:\n";
  if (!wide) return text + tensors_by_kind(page.tensors);
  Table table({"KIND", "NAME", "DTYPE", "SHAPE", "SIZE", "CHUNKS", "TIED TO"});
  for (const TensorLine& one : page.tensors) {
    table.add({one.kind, one_line(one.name), one.dtype, one.shape, bytes(one.bytes), absl::StrCat(one.chunks),
               one.tied_to.empty() ? "-" : one_line(one.tied_to)});
  }
  return text + table.text(true, "  ");
}

Json checkpoint_json(const CheckpointPage& page) {
  Json json = checkpoint_json(page.line);
  if (!good(page.line)) return json;
  json["job"] = page.job;
  json["consumed_samples"] = page.consumed_samples;
  json["seed"] = page.seed;
  if (page.applied_steps) {
    json["applied_steps"] = *page.applied_steps;
    json["skipped_steps"] = *page.skipped_steps;
    if (page.loss_scale > 0) json["loss_scale"] = page.loss_scale;
  }
  json["files"] = page.files;
  json["tensors"] = Json::array();
  for (const TensorLine& one : page.tensors) {
    Json tensor = {{"kind", one.kind},   {"name", one.name},   {"dtype", one.dtype},
                   {"shape", one.shape}, {"bytes", one.bytes}, {"chunks", one.chunks}};
    if (!one.tied_to.empty()) tensor["tied_to"] = one.tied_to;
    json["tensors"].push_back(std::move(tensor));
  }
  json["spec"] = page.spec;
  return json;
}

bool CheckpointDifference::differs() const {
  return !fields.empty() ||
         std::any_of(tensors.begin(), tensors.end(), [](const auto& one) { return client::differs(one); });
}

std::string difference_page(const CheckpointDifference& difference, bool wide, bool header) {
  Table tensors({"KIND", "NAME", "DIFFERENCE", "DIFFERING", "MAX ABS", "MAX REL"});
  size_t count = 0;
  std::string first;
  for (const DifferenceLine& one : difference.tensors) {
    if (differs(one) && count++ == 0) first = absl::StrCat(one.kind, " ", one_line(one.name));
    if (!wide && !differs(one)) continue;
    const bool compared = one.elements > 0;
    tensors.add({one.kind, one_line(one.name),
                 one.note.empty() ? one.difference : absl::StrCat(one.difference, ": ", one.note),
                 compared ? absl::StrCat(one.differing, " of ", one.elements) : "-",
                 compared ? short_number(one.max_absolute) : "-", compared ? short_number(one.max_relative) : "-"});
  }
  std::string page;
  if (count > 0 || (wide && !difference.tensors.empty())) page += tensors.text(header) + "\n";
  if (!difference.fields.empty()) {
    Table fields({"FIELD", "A", "B"});
    for (const FieldDifference& one : difference.fields) {
      fields.add({one_line(one.path), one.a.empty() ? "-" : one_line(one.a), one.b.empty() ? "-" : one_line(one.b)});
    }
    page += fields.text(header) + "\n";
  }
  const std::string all = absl::StrCat(difference.tensors.size(), " tensors");
  if (count == 0) return page + "all " + all + " are equal bit for bit\n";
  return absl::StrCat(page, count, " of ", all, count == 1 ? " differs" : " differ", "; the first is ", first, "\n");
}

Json difference_json(const CheckpointDifference& difference) {
  Json json = {{"a", difference.a}, {"b", difference.b}, {"equal", !difference.differs()}};
  json["tensors"] = Json::array();
  for (const DifferenceLine& one : difference.tensors) {
    Json tensor = {{"kind", one.kind}, {"name", one.name}, {"difference", one.difference}};
    if (!one.note.empty()) tensor["note"] = one.note;
    if (one.elements > 0) {
      tensor["elements"] = one.elements;
      tensor["differing"] = one.differing;
      tensor["max_absolute"] = figure(one.max_absolute);
      tensor["max_relative"] = figure(one.max_relative);
    }
    json["tensors"].push_back(std::move(tensor));
  }
  json["fields"] = Json::array();
  for (const FieldDifference& one : difference.fields) {
    json["fields"].push_back({{"path", one.path}, {"a", one.a}, {"b", one.b}});
  }
  return json;
}

}  // namespace telar::client
