#include "worker/checkpoint/run_files.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_format.h"

namespace telar::checkpoint {
namespace {

constexpr std::string_view kStep = "step-";
constexpr std::string_view kTemp = ".tmp-step-";
constexpr std::string_view kTrash = ".trash-";

std::optional<uint64_t> digits(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string checkpoints_dir(const std::string& run_dir) { return run_dir + "/ckpt"; }
std::string step_name(uint64_t step) { return absl::StrFormat("step-%08d", step); }
std::string temp_name(uint64_t step, uint64_t attempt) { return absl::StrFormat(".tmp-step-%08d-%d", step, attempt); }
std::string trash_name(const std::string& name, uint64_t attempt) {
  return absl::StrFormat(".trash-%s-%d", name, attempt);
}
std::string shard_name(size_t index) { return absl::StrFormat("shard-%05d.safetensors", index); }

std::optional<uint64_t> step_of(std::string_view name) {
  return name.starts_with(kStep) ? digits(name.substr(kStep.size())) : std::nullopt;
}

std::optional<uint64_t> attempt_of_temp(std::string_view name) {
  if (!name.starts_with(kTemp)) return std::nullopt;
  const size_t dash = name.find('-', kTemp.size());
  return dash == std::string_view::npos ? std::nullopt : digits(name.substr(dash + 1));
}

bool is_trash(std::string_view name) { return name.starts_with(kTrash); }

absl::StatusOr<std::vector<Published>> list_published(FileSystem& files, const std::string& run_dir) {
  const std::string parent = checkpoints_dir(run_dir);
  const auto names = files.list(parent);
  std::vector<Published> published;
  if (absl::IsNotFound(names.status())) return published;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (const auto step = step_of(name)) published.push_back({*step, parent + "/" + name});
  }
  std::sort(published.begin(), published.end(), [](const Published& a, const Published& b) { return a.step > b.step; });
  return published;
}

}  // namespace telar::checkpoint
