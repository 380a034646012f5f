#include <algorithm>
#include <filesystem>
#include <map>
#include <ostream>

#include <fmt/format.h>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/live_line.h"
#include "client/output/format.h"
#include "client/output/message.h"
#include "worker/convert/convert.h"

namespace telar::client {
namespace {

using convert::Format;

constexpr int kInterrupted = 130;  // As of a program that Ctrl-C ends.
constexpr Milliseconds kDrawInterval{200};

// On a terminal only.
class Progress {
 public:
  explicit Progress(Context& context) : context_(context), line_(context), start_(context.clock.now()) {}

  absl::Status operator()(uint64_t done, uint64_t total) {
    if (context_.interrupt.requested()) return absl::CancelledError("interrupted; nothing was written");
    if (!line_.live() || !line_.due(kDrawInterval)) return absl::OkStatus();
    const double seconds = std::chrono::duration<double>(context_.clock.now() - start_).count();
    const auto rate = static_cast<uint64_t>(seconds > 0 ? static_cast<double>(done) / seconds : 0);
    line_.draw(line_.fit(fmt::format("{:3.0f} %  {} of {}  {}/s",
                                     100.0 * static_cast<double>(done) / static_cast<double>(total), bytes(done),
                                     bytes(total), bytes(rate))));
    return absl::OkStatus();
  }

 private:
  Context& context_;
  LiveLine line_;
  const std::chrono::steady_clock::time_point start_;
};

std::string absolute(const std::string& path) { return std::filesystem::absolute(path).lexically_normal().string(); }

absl::StatusOr<convert::ConvertOptions> read_options(const CkptConvertOptions& given, Format from) {
  static const std::map<std::string, Format> kFormats = {
      {"hf", Format::kHuggingFace}, {"llmc", Format::kLlmc}, {"telar", Format::kTelar}};
  static const std::map<std::string, backend::DType> kDtypes = {
      {"f32", backend::DType::kF32}, {"bf16", backend::DType::kBF16}, {"f16", backend::DType::kF16}};
  convert::ConvertOptions options;
  // What people have becomes a checkpoint, and a checkpoint what people have.
  options.to = from == Format::kTelar ? Format::kHuggingFace : Format::kTelar;
  if (!given.to_format.empty()) {
    const auto found = kFormats.find(given.to_format);
    if (found == kFormats.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--to: got '", given.to_format, "', want hf, llmc or telar"));
    }
    options.to = found->second;
  }
  if (!given.dtype.empty()) {
    const auto found = kDtypes.find(given.dtype);
    if (found == kDtypes.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--dtype: got '", given.dtype, "', want f32, bf16 or f16"));
    }
    options.dtype = found->second;
  }
  if (given.shard_bytes > 0) options.shard_bytes = given.shard_bytes;
  if (!given.tokenizer.empty()) options.tokenizer = absolute(given.tokenizer);
  return options;
}

absl::Status print_model(Context& context, const convert::OpenedModel& model) {
  v1::JobSpec spec;
  *spec.mutable_model() = model.model;
  switch (context.options.output) {
    case Output::kJson:
      context.out() << to_json(spec);
      return absl::OkStatus();
    case Output::kTable:
    case Output::kYaml:
      context.out() << to_yaml(spec);
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError("--output: --print-model prints yaml or json");
  }
}

absl::Status convert_to(Context& context, const convert::OpenedModel& model, const CkptConvertOptions& given) {
  if (given.to.empty()) return absl::InvalidArgumentError("TO is missing; or ask for --print-model");
  auto options = read_options(given, model.format);
  if (!options.ok()) return options.status();
  context.interrupt.arm();
  absl::StatusOr<convert::Converted> converted;
  {
    Progress progress(context);
    options->progress = [&](uint64_t done, uint64_t total) { return progress(done, total); };
    converted = convert::convert(checkpoint::FileSystem::posix(), model, absolute(given.to), *options);
  }
  if (!converted.ok()) return converted.status();
  for (const std::string& note : converted->notes) context.err() << "note: " << note << "\n";
  context.err() << fmt::format("{}, {} in {} file{}\n", backend::name_of(converted->dtype), bytes(converted->bytes),
                               converted->files, converted->files == 1 ? "" : "s");
  context.out() << given.to << "\n";
  return absl::OkStatus();
}

}  // namespace

int ckpt_convert(Context& context, const CkptConvertOptions& options) {
  const auto model = convert::open_model(checkpoint::FileSystem::posix(), absolute(options.from));
  absl::Status status = model.status();
  if (status.ok()) status = options.print_model ? print_model(context, *model) : convert_to(context, *model, options);
  if (status.ok()) return kOk;
  context.err() << "error: " << one_line(std::string(status.message())) << "\n" << std::flush;
  return absl::IsCancelled(status) ? kInterrupted : kUsage;
}

}  // namespace telar::client
