#include "worker/prepare/prepare.h"

#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "worker/prepare/open_tokenizer.h"
#include "worker/prepare/output.h"
#include "worker/prepare/pipeline.h"

namespace telar::prepare {
namespace {

using Json = nlohmann::ordered_json;

constexpr unsigned kMostThreads = 1024;

bool is_jsonl(std::string name) {
  absl::AsciiStrToLower(&name);
  for (const char* packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) name.resize(name.rfind('.'));
  }
  return name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

absl::StatusOr<std::vector<Input>> find_inputs(const Options& options) {
  std::vector<Input> inputs;
  for (const std::string& named : options.inputs) {
    auto paths = named == "-" ? std::vector<std::string>{named} : data::expand_paths({named});
    if (!paths.ok()) return paths.status();
    for (std::string& path : *paths) {
      Input input{.path = std::move(path)};
      input.jsonl = options.kind == InputKind::kJsonl || (options.kind == InputKind::kByName && is_jsonl(input.path));
      struct stat about {};
      if (input.path != "-") {
        // Opened once, so that what cannot be read is refused before anything is written.
        if (auto stream = open_stream(input.path); !stream.ok()) return stream.status();
        if (::stat(input.path.c_str(), &about) != 0) {
          return absl::ErrnoToStatus(errno, absl::StrCat("input file ", input.path));
        }
        input.bytes = static_cast<uint64_t>(about.st_size);
        input.modified_ns = about.st_mtim.tv_sec * int64_t{1'000'000'000} + about.st_mtim.tv_nsec;
      }
      inputs.push_back(std::move(input));
    }
  }
  return inputs;
}

absl::Status check(const Options& options) {
  if (options.inputs.empty()) return absl::InvalidArgumentError("no input given");
  if (options.out.empty()) return absl::InvalidArgumentError("--out: no directory given");
  if (options.threads < 1 || options.threads > kMostThreads) {
    return absl::InvalidArgumentError(absl::StrCat("--threads: got ", options.threads, ", want 1 to ", kMostThreads));
  }
  const uint64_t most = options.format == Format::kLlmc ? INT32_MAX : uint64_t{1} << 40;
  if (options.shard_tokens < 1 || options.shard_tokens > most) {
    return absl::InvalidArgumentError(absl::StrCat("--shard-tokens: got ", options.shard_tokens, ", want 1 to ", most));
  }
  if (options.split == TextSplit::kSeparator && options.separator.find('\n') != std::string::npos) {
    return absl::InvalidArgumentError("--separator: is one line, without a line break");
  }
  return absl::OkStatus();
}

// All that decides what comes out.
Json request_of(const Options& options, const std::vector<Input>& inputs, const data::TokenizerRecord& tokenizer) {
  Json request = {{"format", static_cast<int>(options.format)},
                  {"tokenizer", tokenizer.hash},
                  {"end_of_document", tokenizer.end_of_document},
                  {"field", options.field},
                  {"split", static_cast<int>(options.split)},
                  {"separator", options.separator},
                  {"shard_tokens", options.shard_tokens},
                  {"max_documents", options.max_documents},
                  {"inputs", Json::array()}};
  for (const Input& input : inputs) {
    request["inputs"].push_back(
        Json{{"path", input.path}, {"jsonl", input.jsonl}, {"bytes", input.bytes}, {"modified_ns", input.modified_ns}});
  }
  return request;
}

absl::StatusOr<data::TokenizerRecord> record_of(const v1::TokenizerSpec& spec, const Tokenizer& tokenizer) {
  auto hash = data::tokenizer_hash(spec);
  if (!hash.ok()) return hash.status();
  if (tokenizer.end_of_document() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer ", *hash, ": does not say what ends a document; give --end-of-document"));
  }
  return data::TokenizerRecord{spec, *std::move(hash), tokenizer.vocab_size(), tokenizer.end_of_document()};
}

std::string place_of(const std::string& path, const Fault& fault) {
  std::string place = absl::StrCat(path, ":", fault.line);
  if (fault.column > 0) absl::StrAppend(&place, ":", fault.column);
  return absl::StrCat(place, ": ", fault.what);
}

// Takes the batches in order until there are no more, or enough.
class Run {
 public:
  Run(const Options& options, const std::vector<Input>& inputs, Output& output)
      : options_(options), inputs_(inputs), output_(output) {
    for (const Input& input : inputs) progress_.total_bytes += input.bytes;
    if (std::any_of(inputs.begin(), inputs.end(), [](const Input& input) { return input.path == "-"; })) {
      progress_.total_bytes = 0;
    }
  }

  absl::Status all(Pipeline& pipeline) {
    while (!enough()) {
      const auto batch = pipeline.next();
      if (!batch) break;
      for (const Item& item : batch->items) {
        if (enough()) break;
        if (auto status = take(item, *batch); !status.ok()) return status;
      }
      if (!batch->status.ok()) return batch->status;
      tell(batch->read_bytes);
    }
    return absl::OkStatus();
  }

  void tell(uint64_t read_bytes) {
    const WorkState& state = output_.state();
    progress_.read_bytes = read_bytes;
    progress_.documents = state.documents;
    progress_.tokens = state.tokens;
    progress_.skipped = state.skipped;
    progress_.shards = state.shards.size();
    if (options_.progress) options_.progress(progress_);
  }
  void tell_end() { tell(progress_.read_bytes); }

 private:
  bool enough() const { return options_.max_documents > 0 && output_.state().documents >= options_.max_documents; }

  absl::Status take(const Item& item, const Batch& batch) {
    if (item.fault) {
      const std::string line = place_of(inputs_[batch.file].path, *item.fault);
      return options_.skip_faults ? output_.add_skipped(line, item.after) : absl::DataLossError(line);
    }
    if (item.size > 0) {
      return output_.add_document(std::span(batch.ids).subspan(item.begin, item.size), item.text_bytes, item.after);
    }
    output_.add_empty(item.after);
    return absl::OkStatus();
  }

  const Options& options_;
  const std::vector<Input>& inputs_;
  Output& output_;
  Progress progress_;
};

}  // namespace

absl::StatusOr<Summary> prepare(const Options& options) {
  if (auto status = check(options); !status.ok()) return status;
  const auto inputs = find_inputs(options);
  if (!inputs.ok()) return inputs.status();
  const auto tokenizer = open_tokenizer(options.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  const auto record = record_of(options.tokenizer, **tokenizer);
  if (!record.ok()) return record.status();
  const auto output = Output::open(options, request_of(options, *inputs, *record), *record);
  if (!output.ok()) return output.status();
  const WorkState& state = (*output)->state();
  const bool piped = std::any_of(inputs->begin(), inputs->end(), [](const Input& one) { return one.path == "-"; });
  if (piped && !state.shards.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--out ", options.out, ": was begun from standard input, which cannot be taken up again; remove it"));
  }
  Summary summary{.resumed_documents = state.documents, .vocabulary = record->vocabulary};
  Run run(options, *inputs, **output);
  {
    DocumentReader reader(*inputs, options.split, options.separator, state.position);
    Pipeline pipeline(reader, *inputs, **tokenizer, options.field, options.threads);
    if (auto status = run.all(pipeline); !status.ok()) return status;
  }
  if (state.documents == 0) {
    return absl::InvalidArgumentError(absl::StrCat("no document with text in ", inputs->size(), " input file",
                                                   inputs->size() == 1 ? "" : "s", " (", state.empty, " empty, ",
                                                   state.skipped, " skipped)"));
  }
  if (auto status = (*output)->finish(); !status.ok()) return status;
  run.tell_end();
  summary.documents = state.documents;
  summary.tokens = state.tokens;
  summary.text_bytes = state.text_bytes;
  summary.empty = state.empty;
  summary.skipped = state.skipped;
  summary.shards = state.shards.size();
  return summary;
}

}  // namespace telar::prepare
