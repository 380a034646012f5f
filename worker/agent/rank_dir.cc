#include "worker/agent/rank_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/fault_point.h"
#include "worker/metrics/rank_files.h"

namespace telar::agent {
namespace fs = std::filesystem;
using nlohmann::json;

RankKey key_of(const v1::RankPlan& plan) { return {plan.job(), plan.epoch(), plan.rank()}; }

std::string to_string(const RankKey& key) { return absl::StrCat(key.job, " epoch ", key.epoch, " rank ", key.rank); }

absl::StatusOr<std::string> job_id(const std::string& job) {
  const std::string id = job.substr(job.rfind('/') + 1);
  const bool plain = std::all_of(
      id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; });
  if (id.empty() || id[0] == '.' || id.size() > 128 || !plain) {
    return absl::InvalidArgumentError(absl::StrCat("plan.job: '", job, "' does not end in a job id of [A-Za-z0-9_.-]"));
  }
  return id;
}

namespace {

absl::Status failed(const std::string& what, const std::string& path) {
  const int number = errno;
  const auto code = number == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable;
  return absl::Status(code, absl::StrCat(what, " ", path, ": ", std::strerror(number)));
}

absl::Status write_all(int file, const std::string& content, const std::string& path) {
  for (size_t done = 0; done < content.size();) {
    const ssize_t wrote = write(file, content.data() + done, content.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return failed("cannot write", path);
    done += static_cast<size_t>(wrote);
  }
  return absl::OkStatus();
}

// A damaged file counts as an absent one.
std::optional<json> read_json(const std::string& path) {
  const auto text = read_file(path);
  if (!text.ok()) return std::nullopt;
  json value = json::parse(*text, nullptr, false);
  if (!value.is_object()) return std::nullopt;
  return value;
}

template <typename T>
T get(const json& value, const char* name, T absent) {
  const auto found = value.find(name);
  if (found == value.end()) return absent;
  if constexpr (std::is_same_v<T, std::string>) {
    return found->is_string() ? found->get<std::string>() : absent;
  } else {
    return found->is_number() ? found->get<T>() : absent;
  }
}

}  // namespace

absl::Status write_file(const std::string& path, const std::string& content) {
  const std::string name = path.substr(path.rfind('/') + 1);
  if (absl::Status status = fault_point(name, "begin"); !status.ok()) return status;
  const std::string draft = path + ".new";
  const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return failed("cannot create", draft);
  absl::Status status = write_all(file, content, draft);
  if (close(file) != 0 && status.ok()) status = failed("cannot write", draft);
  if (status.ok() && rename(draft.c_str(), path.c_str()) != 0) status = failed("cannot rename to", path);
  if (!status.ok()) unlink(draft.c_str());
  fault_point(name, "written").IgnoreError();
  return status;
}

absl::StatusOr<std::string> read_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return failed("cannot open", path);
  std::string content;
  char block[16384];
  ssize_t count = 0;
  while ((count = read(file, block, sizeof(block))) > 0 || (count < 0 && errno == EINTR)) {
    if (count > 0) content.append(block, static_cast<size_t>(count));
  }
  absl::Status status = count < 0 ? failed("cannot read", path) : absl::OkStatus();
  close(file);
  if (!status.ok()) return status;
  return content;
}

absl::Status RankDir::create(const v1::RankPlan& plan) const {
  std::error_code problem;
  fs::create_directories(path_, problem);
  if (problem) return absl::UnavailableError(absl::StrCat("cannot create ", path_, ": ", problem.message()));
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(plan, &text, options);
  if (!printed.ok()) return absl::InternalError(absl::StrCat("plan of ", to_string(key_of(plan)), " is not printable"));
  return write_file(plan_path(), text);
}

absl::StatusOr<v1::RankPlan> RankDir::read_plan() const {
  auto text = read_file(plan_path());
  if (!text.ok()) return text.status();
  v1::RankPlan plan;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // Written by a newer daemon before a downgrade.
  const auto parsed = google::protobuf::util::JsonStringToMessage(*text, &plan, options);
  if (!parsed.ok()) {
    return absl::DataLossError(absl::StrCat(plan_path(), ": ", std::string(parsed.message())));
  }
  return plan;
}

absl::Status RankDir::write_process(const RankProcess& process) const {
  const json value = {{"pid", process.id.pid},
                      {"start_ticks", process.id.start_ticks},
                      {"boot_id", process.id.boot_id},
                      {"cgroup", process.cgroup}};
  return write_file(path_ + "/pid.json", value.dump() + "\n");
}

std::optional<RankProcess> RankDir::read_process() const {
  const auto value = read_json(path_ + "/pid.json");
  if (!value) return std::nullopt;
  return RankProcess{
      {get<int>(*value, "pid", 0), get<uint64_t>(*value, "start_ticks", 0), get<std::string>(*value, "boot_id", "")},
      get<std::string>(*value, "cgroup", "")};
}

absl::Status RankDir::write_exit(const RankExit& exit) const {
  json value = {{"exit_code", exit.exit_code}};
  if (!exit.message.empty()) value["message"] = exit.message;
  return write_file(path_ + "/exit.json", value.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
}

std::optional<RankExit> RankDir::read_exit() const {
  const auto value = read_json(path_ + "/exit.json");
  if (!value || !value->contains("exit_code")) return std::nullopt;
  return RankExit{get<int>(*value, "exit_code", 0), get<std::string>(*value, "message", "")};
}

absl::Status RankDir::write_shipped(const ShippedOffsets& offsets) const {
  const json value = {{"log_offset", offsets.log_offset}, {"event_line", offsets.event_line}};
  return write_file(path_ + "/shipped.json", value.dump() + "\n");
}

ShippedOffsets RankDir::read_shipped() const {
  const auto value = read_json(path_ + "/shipped.json");
  if (!value) return {};
  return {get<uint64_t>(*value, "log_offset", 0), get<uint64_t>(*value, "event_line", 0)};
}

absl::Status RankDir::write_memory_before(uint64_t bytes) const {
  return write_file(path_ + "/memory.json", json{{"used_bytes", bytes}}.dump() + "\n");
}

std::optional<uint64_t> RankDir::read_memory_before() const {
  const auto value = read_json(path_ + "/memory.json");
  if (!value || !value->contains("used_bytes")) return std::nullopt;
  return get<uint64_t>(*value, "used_bytes", 0);
}

std::string RankDir::wishes_path() const { return absl::StrCat(path_, "/", metrics::kWishesFile); }

absl::Status RankDir::write_wishes(const v1::RankWishes& wishes) const {
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(wishes, &text, options);
  if (!printed.ok()) return absl::InternalError("wishes are not printable");
  text += "\n";
  if (const auto there = read_file(wishes_path()); there.ok() && *there == text) return absl::OkStatus();
  return write_file(wishes_path(), text);
}

absl::StatusOr<StateDir> StateDir::open(const std::string& path) {
  std::error_code problem;
  const std::string absolute = fs::absolute(path, problem).lexically_normal().string();
  for (const char* folder : {"/ranks", "/finished"}) {
    if (!problem) fs::create_directories(absolute + folder, problem);
  }
  if (problem) return absl::UnavailableError(absl::StrCat("--state: cannot create ", path, ": ", problem.message()));
  const std::string lock = absolute + "/lock";
  const int file = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return failed("--state: cannot open", lock);
  if (flock(file, LOCK_EX | LOCK_NB) != 0) {
    close(file);
    return absl::FailedPreconditionError(
        absl::StrCat("--state: another telar-worker already uses ", absolute, "; give each its own directory"));
  }
  return StateDir(absolute, file);
}

absl::StatusOr<RankDir> StateDir::rank_dir(const RankKey& key) const {
  const auto id = job_id(key.job);
  if (!id.ok()) return id.status();
  return RankDir(absl::StrCat(path_, "/ranks/", *id, "/", key.epoch, "/", key.rank));
}

std::vector<std::pair<v1::RankPlan, RankDir>> StateDir::scan() const {
  std::vector<std::pair<v1::RankPlan, RankDir>> found;
  std::vector<std::string> unstarted;
  std::error_code problem;
  for (fs::recursive_directory_iterator entry(path_ + "/ranks", problem), end; !problem && entry != end;
       entry.increment(problem)) {
    if (entry.depth() != 2) continue;  // <job id>/<epoch>/<rank>
    entry.disable_recursion_pending();
    RankDir directory(entry->path().string());
    auto plan = directory.read_plan();
    const auto process = directory.read_process();
    if (plan.ok() && (process || directory.read_exit())) {
      found.emplace_back(std::move(*plan), std::move(directory));
      continue;
    }
    if (process) kill_members({process->id, directory.marker(), process->cgroup});  // Nobody could say what it is.
    unstarted.push_back(directory.path());
  }
  for (const std::string& path : unstarted) {
    spdlog::warn("{} holds no started rank; removed", path);
    fs::remove_all(path, problem);
  }
  return found;
}

void StateDir::retire(const RankKey& key, const RankDir& directory, int keep) const {
  const auto id = job_id(key.job);
  if (!id.ok()) return;
  const std::string finished = path_ + "/finished";
  const std::string target = absl::StrCat(finished, "/", *id, ".", key.epoch, ".", key.rank);
  std::error_code problem;
  fs::remove_all(target, problem);
  fs::rename(directory.path(), target, problem);
  if (problem) spdlog::error("cannot move {} to {}: {}", directory.path(), target, problem.message());
  // The folders of the epoch and the job, if that was the last rank in them.
  fs::path parent = fs::path(directory.path()).parent_path();
  if (fs::remove(parent, problem)) fs::remove(parent.parent_path(), problem);

  std::vector<std::pair<fs::file_time_type, fs::path>> kept;
  for (fs::directory_iterator entry(finished, problem), end; !problem && entry != end; entry.increment(problem)) {
    std::error_code unreadable;
    if (entry->path() != target) kept.emplace_back(entry->last_write_time(unreadable), entry->path());
  }
  std::sort(kept.begin(), kept.end());
  // The order of retirement, also when the clock was set back since the last one.
  fs::file_time_type time = fs::file_time_type::clock::now();
  if (!kept.empty()) time = std::max(time, kept.back().first + std::chrono::milliseconds(1));
  fs::last_write_time(target, time, problem);
  kept.emplace_back(time, target);
  for (size_t i = 0; i + static_cast<size_t>(keep) < kept.size(); ++i) fs::remove_all(kept[i].second, problem);
}

}  // namespace telar::agent
