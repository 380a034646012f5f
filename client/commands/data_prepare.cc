#include <algorithm>
#include <ostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/commands/data.h"
#include "client/commands/exit_codes.h"
#include "client/commands/live_line.h"
#include "client/commands/report.h"
#include "client/output/data.h"
#include "client/output/format.h"
#include "worker/prepare/prepare.h"

namespace telar::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr Milliseconds kLiveInterval{100};
constexpr Milliseconds kPlainBarInterval{5000};

// How far it is, on stderr: one line redrawn on a terminal, a line now and then elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(Context& context) : context_(context), line_(context) {}

  void show(const prepare::Progress& progress) {
    const auto now = context_.clock.now();
    if (!line_.due(line_.live() ? kLiveInterval : kPlainBarInterval)) return;
    if (!begun_) {
      begun_ = now;
      begun_bytes_ = progress.read_bytes;  // An earlier run may have read up to here.
      return;
    }
    const double seconds = std::chrono::duration<double>(now - *begun_).count();
    const std::string line =
        data_progress_line({.read_bytes = progress.read_bytes,
                            .total_bytes = progress.total_bytes,
                            .documents = progress.documents,
                            .tokens = progress.tokens,
                            .skipped = progress.skipped,
                            .bytes_per_second = static_cast<double>(progress.read_bytes - begun_bytes_) / seconds});
    if (line_.live()) {
      line_.draw(line_.fit(line));
    } else {
      line_.note(line);
    }
  }
  void clear() { line_.clear(); }

 private:
  Context& context_;
  LiveLine line_;
  std::optional<Clock::Steady> begun_;
  uint64_t begun_bytes_ = 0;
};

absl::Status unknown(const char* option, const std::string& value, const char* want) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": got '", value, "', want ", want));
}

absl::StatusOr<prepare::Options> options_of(const DataPrepareOptions& typed) {
  prepare::Options options{.inputs = typed.inputs, .out = typed.out, .field = typed.field};
  while (options.out.size() > 1 && options.out.ends_with('/')) options.out.pop_back();
  if (typed.format == "megatron") {
    options.format = prepare::Format::kMegatron;
  } else if (typed.format == "llmc") {
    options.format = prepare::Format::kLlmc;
  } else if (typed.format != "prepared") {
    return unknown("--format", typed.format, "prepared, megatron or llmc");
  }
  if (typed.input == "text") {
    options.kind = prepare::InputKind::kText;
  } else if (typed.input == "jsonl") {
    options.kind = prepare::InputKind::kJsonl;
  } else if (typed.input != "auto") {
    return unknown("--input", typed.input, "auto, text or jsonl");
  }
  if (typed.documents == "paragraphs") {
    options.split = prepare::TextSplit::kParagraph;
  } else if (typed.documents != "file") {
    return unknown("--documents", typed.documents, "file or paragraphs");
  }
  if (typed.separator) {
    options.split = prepare::TextSplit::kSeparator;
    options.separator = *typed.separator;
  }
  if (typed.on_error != "stop" && typed.on_error != "skip")
    return unknown("--on-error", typed.on_error, "stop or skip");
  options.skip_faults = typed.on_error == "skip";
  options.threads = typed.threads > 0 ? typed.threads : std::max(1u, std::thread::hardware_concurrency());
  if (typed.shard_tokens > 0) options.shard_tokens = typed.shard_tokens;
  options.max_documents = typed.max_documents;
  auto tokenizer = tokenizer_of(typed.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  options.tokenizer = *std::move(tokenizer);
  return options;
}

void print(Context& context, const prepare::Options& options, const std::string& format,
           const prepare::Summary& summary) {
  const Json json = {{"out", options.out},
                     {"format", format},
                     {"documents", summary.documents},
                     {"tokens", summary.tokens},
                     {"text_bytes", summary.text_bytes},
                     {"shards", summary.shards},
                     {"vocabulary", summary.vocabulary},
                     {"empty", summary.empty},
                     {"skipped", summary.skipped},
                     {"resumed_documents", summary.resumed_documents}};
  std::ostream& out = context.out();
  switch (context.options.output) {
    case Output::kJson:
      out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
      return;
    case Output::kYaml:
      out << json_as_yaml(json);
      return;
    case Output::kName:
      out << options.out << "\n";
      return;
    default:
      break;
  }
  out << options.out << ": " << summary.documents << " documents, " << summary.tokens << " tokens, "
      << bytes(summary.text_bytes) << " of text, " << summary.shards << (summary.shards == 1 ? " shard" : " shards")
      << ", vocabulary " << summary.vocabulary << "\n";
  if (summary.resumed_documents > 0) out << "taken up behind " << summary.resumed_documents << " documents\n";
  if (summary.empty > 0) out << "left out: " << summary.empty << " without text\n";
  if (summary.skipped > 0) {
    out << "left out: " << summary.skipped << " faulty, listed in " << options.out << "/" << prepare::kSkippedFile
        << "\n";
  }
}

}  // namespace

int data_prepare(Context& context, const DataPrepareOptions& typed) {
  auto options = options_of(typed);
  if (!options.ok()) return report_file(context, options.status());
  ProgressLine line(context);
  options->progress = [&line](const prepare::Progress& progress) { line.show(progress); };
  const auto summary = prepare::prepare(*options);
  line.clear();
  if (!summary.ok()) return report_file(context, summary.status());
  print(context, *options, typed.format, *summary);
  return kOk;
}

}  // namespace telar::client
