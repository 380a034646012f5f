#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/data.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/output/data.h"
#include "client/output/format.h"
#include "client/output/table.h"

namespace telar::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostFrequent = 10;

double mean(const prepare::DataStats& stats) {
  return static_cast<double>(stats.tokens) / static_cast<double>(stats.documents);
}

std::optional<double> bytes_per_token(const prepare::OpenData& data, const prepare::DataStats& stats) {
  if (data.text_bytes == 0) return std::nullopt;
  return static_cast<double>(data.text_bytes) / static_cast<double>(stats.tokens);
}

std::optional<std::string> text_of(const prepare::OpenData& data, int32_t id) {
  if (data.tokenizer == nullptr) return std::nullopt;
  if (id == data.end_of_document) return "(end of document)";
  const auto text = data.tokenizer->decode({&id, 1});
  return text.ok() ? std::optional(printable_line(*text)) : std::nullopt;
}

std::string share(uint64_t part, uint64_t of) {
  return absl::StrFormat("%.2f%%", 100.0 * static_cast<double>(part) / static_cast<double>(of));
}

Json as_json(const prepare::OpenData& data, const prepare::DataStats& stats) {
  Json json = {{"format", data.format},
               {"files", data.files},
               {"file_bytes", data.file_bytes},
               {"tokens", stats.tokens},
               {"distinct_ids", stats.distinct}};
  if (data.vocabulary > 0) json["vocabulary"] = data.vocabulary;
  if (data.text_bytes > 0) json["text_bytes"] = data.text_bytes;
  if (const auto ratio = bytes_per_token(data, stats)) json["bytes_per_token"] = *ratio;
  if (stats.has_documents) {
    json["documents"] = stats.documents;
    json["document_tokens"] = {{"mean", mean(stats)}, {"min", stats.shortest}, {"p10", stats.p10},
                               {"p50", stats.median}, {"p90", stats.p90},      {"p99", stats.p99},
                               {"max", stats.longest}};
    json["document_lengths"] = Json::array();
    for (const auto& [from, documents] : stats.lengths) {
      json["document_lengths"].push_back(Json{{"tokens_from", from}, {"documents", documents}});
    }
  }
  json["frequent_ids"] = Json::array();
  for (const auto& [id, count] : stats.frequent) {
    Json one = {{"id", id}, {"count", count}};
    if (const auto text = text_of(data, id)) one["text"] = *text;
    json["frequent_ids"].push_back(std::move(one));
  }
  return json;
}

std::string as_tables(const prepare::OpenData& data, const prepare::DataStats& stats, bool header) {
  Table facts({"", ""});
  facts.add({"format", data.format});
  facts.add({"files", absl::StrCat(data.files, ", ", bytes(data.file_bytes))});
  facts.add({"documents", stats.has_documents ? absl::StrCat(stats.documents) : "not told apart"});
  facts.add({"tokens", absl::StrCat(stats.tokens)});
  const std::string of = data.vocabulary > 0 ? absl::StrCat(" of a vocabulary of ", data.vocabulary) : "";
  facts.add({"ids in use", absl::StrCat(stats.distinct, of)});
  if (const auto ratio = bytes_per_token(data, stats)) {
    facts.add({"bytes per token", absl::StrFormat("%.3f", *ratio)});
  }
  if (stats.has_documents) {
    facts.add({"tokens per document",
               absl::StrFormat("mean %.1f, min %d, p10 %d, p50 %d, p90 %d, p99 %d, max %d", mean(stats), stats.shortest,
                               stats.p10, stats.median, stats.p90, stats.p99, stats.longest)});
  }
  std::string text = facts.text(false);
  if (stats.has_documents) {
    Table lengths({"TOKENS FROM", "DOCUMENTS", "SHARE"});
    for (const auto& [from, documents] : stats.lengths) {
      lengths.add({absl::StrCat(from), absl::StrCat(documents), share(documents, stats.documents)});
    }
    text += "\n" + lengths.text(header);
  }
  Table ids({"ID", "COUNT", "SHARE", "TEXT"});
  for (const auto& [id, count] : stats.frequent) {
    ids.add({absl::StrCat(id), absl::StrCat(count), share(count, stats.tokens), text_of(data, id).value_or("-")});
  }
  return text + "\n" + ids.text(header);
}

}  // namespace

int data_stats(Context& context, const DataOptions& options) {
  const auto request = request_of(options);
  if (!request.ok()) return report_file(context, request.status());
  const auto data = prepare::open_data(*request);
  if (!data.ok()) return report_file(context, data.status());
  const auto stats = prepare::measure(*data, kMostFrequent);
  if (!stats.ok()) return report_file(context, stats.status());
  switch (context.options.output) {
    case Output::kJson:
      context.out() << as_json(*data, *stats).dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
      break;
    case Output::kYaml:
      context.out() << json_as_yaml(as_json(*data, *stats));
      break;
    default:
      context.out() << as_tables(*data, *stats, context.header());
  }
  return kOk;
}

}  // namespace telar::client
