#include "server/jobs/queues_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/spec/reader.h"
#include "server/jobs/admission.h"

namespace telar::server::jobs {
namespace {

constexpr int kMostQueues = 1000;

// Fields are found again in the file by their path.
class Check {
 public:
  Check(const std::string& path, client::SpecReading reading) : path_(path), reading_(std::move(reading)) {}

  std::vector<QueueConfig> run(const QueueSettings& settings) {
    std::vector<QueueConfig> queues;
    std::map<std::string, int> seen;
    if (settings.queues_size() > kMostQueues) {
      problem("queues", absl::StrCat(settings.queues_size(), " queues; at most ", kMostQueues));
    }
    for (int i = 0; i < settings.queues_size(); ++i) {
      const QueueSetting& setting = settings.queues(i);
      const std::string field = absl::StrCat("queues[", i, "]");
      if (!label(setting.name())) {
        problem(field + ".name", absl::StrCat(client::quote(setting.name()),
                                              " must be 1 to 63 of a-z, 0-9 and '-', with '-' neither first nor last"));
      } else if (const auto [first, fresh] = seen.try_emplace(setting.name(), i); !fresh) {
        problem(field + ".name",
                absl::StrCat("'", setting.name(), "' is the name of queues[", first->second, "], too"));
      }
      const double weight = setting.has_weight() ? setting.weight() : 1;
      if (!(weight > 0 && weight <= 1e6)) problem(field + ".weight", absl::StrCat(weight, " is not within (0, 1e6]"));
      if (std::abs(setting.priority()) > 1000) {
        problem(field + ".priority", absl::StrCat(setting.priority(), " is not within [-1000, 1000]"));
      }
      queues.push_back({setting.name(), weight, setting.quota_devices(), setting.priority(), setting.preempt()});
    }
    if (seen.count(kDefaultQueue) == 0) queues.push_back({.name = kDefaultQueue});
    return queues;
  }

  absl::Status status() const {
    if (reading_.problems.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrJoin(reading_.problems, "\n", [](std::string* out, const client::Problem& problem) {
          absl::StrAppend(out, "--queues: ", client::to_string(problem));
        }));
  }

 private:
  void problem(const std::string& field, const std::string& text) {
    const auto place = reading_.places.find(field);
    reading_.problems.push_back({path_, place == reading_.places.end() ? client::Place() : place->second, field, text});
  }

  const std::string path_;
  client::SpecReading reading_;
};

absl::StatusOr<std::vector<QueueConfig>> checked(const std::string& path, client::SpecReading reading,
                                                 const QueueSettings& settings) {
  Check check(path, std::move(reading));
  std::vector<QueueConfig> queues = check.run(settings);
  if (absl::Status status = check.status(); !status.ok()) return status;
  return queues;
}

}  // namespace

absl::StatusOr<std::vector<QueueConfig>> parse_queues(const std::string& path, const std::string& text) {
  QueueSettings settings;
  client::SpecReading reading = client::read_spec(path, text, client::Format::kYaml, settings);
  return checked(path, std::move(reading), settings);
}

absl::StatusOr<std::vector<QueueConfig>> read_queues(const std::string& path) {
  QueueSettings settings;
  std::istringstream none;
  client::SpecReading reading = client::read_spec_file(path, none, settings);
  return checked(path, std::move(reading), settings);
}

}  // namespace telar::server::jobs
