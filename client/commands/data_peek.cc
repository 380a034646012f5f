#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/data.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/output/data.h"

namespace telar::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMostTokens = uint64_t{1} << 24;

// Neighbouring tokens of one document.
struct Extract {
  std::optional<uint64_t> document;  // None: nothing tells documents apart.
  uint64_t begin = 0;                // Of the document.
  uint64_t position = 0;             // Of the first of `ids`.
  std::vector<int32_t> ids;
};

absl::StatusOr<uint64_t> start_of(const prepare::OpenData& data, const DataPeekOptions& options) {
  const uint64_t size = data.source->size();
  if (options.position && *options.position >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("--position: got ", *options.position, ", there are ", size, " tokens"));
  }
  if (!options.document) return options.position.value_or(0);
  if (data.documents == nullptr) {
    return absl::InvalidArgumentError(
        "--document: nothing tells documents apart here; give --end-of-document-id or --tokenizer");
  }
  if (*options.document >= data.documents->count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--document: got ", *options.document, ", there are ", data.documents->count()));
  }
  return *options.document == 0 ? 0 : data.documents->end(*options.document - 1);
}

absl::StatusOr<std::vector<Extract>> extracts(const prepare::OpenData& data, uint64_t from, uint64_t tokens) {
  const uint64_t end = from + std::min(tokens, data.source->size() - from);
  std::vector<Extract> all;
  uint64_t document = data.documents == nullptr ? 0 : prepare::document_at(*data.documents, from);
  for (uint64_t at = from; at < end; ++document) {
    Extract one{.position = at};
    uint64_t stop = end;
    if (data.documents != nullptr) {
      one.document = document;
      one.begin = document == 0 ? 0 : data.documents->end(document - 1);
      stop = std::min(end, data.documents->end(document));
    }
    one.ids.resize(stop - at);
    if (auto status = data.source->read(at, one.ids); !status.ok()) return status;
    at = stop;
    all.push_back(std::move(one));
  }
  return all;
}

// Without the token that only says that the document is over.
std::optional<std::string> text_of(const prepare::OpenData& data, const Extract& extract) {
  if (data.tokenizer == nullptr) return std::nullopt;
  std::span<const int32_t> ids = extract.ids;
  if (!ids.empty() && ids.back() == data.end_of_document) ids = ids.first(ids.size() - 1);
  const auto text = data.tokenizer->decode(ids);
  return text.ok() ? std::optional(printable(*text)) : std::nullopt;
}

void print_text(std::ostream& out, const prepare::OpenData& data, const std::vector<Extract>& all) {
  for (const Extract& extract : all) {
    out << "--- ";
    if (extract.document) out << "document " << *extract.document << ", ";
    if (extract.document && extract.position > extract.begin) {
      out << "from its token " << extract.position - extract.begin << ", ";
    }
    out << "token " << extract.position << " of " << data.source->size() << "\n";
    const auto text = text_of(data, extract);
    out << (text ? *text : absl::StrJoin(extract.ids, " ")) << (text && text->ends_with('\n') ? "" : "\n");
  }
}

}  // namespace

int data_peek(Context& context, const DataPeekOptions& options) {
  const auto request = request_of(options.data);
  if (!request.ok()) return report_file(context, request.status());
  if (options.tokens < 1 || options.tokens > kMostTokens) {
    return report_file(context, absl::InvalidArgumentError(
                                    absl::StrCat("--tokens: got ", options.tokens, ", want 1 to ", kMostTokens)));
  }
  const auto data = prepare::open_data(*request);
  if (!data.ok()) return report_file(context, data.status());
  const auto from = start_of(*data, options);
  if (!from.ok()) return report_file(context, from.status());
  const auto all = extracts(*data, *from, options.tokens);
  if (!all.ok()) return report_file(context, all.status());
  if (context.options.output != Output::kJson && context.options.output != Output::kYaml) {
    print_text(context.out(), *data, *all);
    return kOk;
  }
  Json json = Json::array();
  for (const Extract& extract : *all) {
    Json one = {{"position", extract.position}, {"ids", extract.ids}};
    if (extract.document) one["document"] = *extract.document;
    if (const auto text = text_of(*data, extract)) one["text"] = *text;
    json.push_back(std::move(one));
  }
  const bool yaml = context.options.output == Output::kYaml;
  context.out() << (yaml ? json_as_yaml(json) : json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  return kOk;
}

}  // namespace telar::client
