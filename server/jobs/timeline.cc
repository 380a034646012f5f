#include "server/jobs/timeline.h"

#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace telar::server::jobs {
namespace {

constexpr const char* kSetting = "timeline";
constexpr std::chrono::seconds kStep(1);  // A leap second, and what slewing leaves between two clocks, are less.

}  // namespace

Timeline::Timeline(const Clock* clock, Clock::Wall::duration ahead)
    : clock_(clock),
      offset_(clock->wall().time_since_epoch() + ahead -
              std::chrono::duration_cast<Clock::Wall::duration>(clock->now().time_since_epoch())),
      opened_(now()),
      kept_(ahead) {}

absl::StatusOr<Timeline> Timeline::open(const Clock* clock, store::Store* store) {
  const auto rows = store->settings(kSetting);
  if (!rows.ok()) return rows.status();
  if (rows->empty()) return Timeline(clock);
  const std::string text = rows->front().blob.value_or("");
  int64_t ahead = 0;
  if (!absl::SimpleAtoi(text, &ahead)) {
    return absl::DataLossError(absl::StrCat("store: the setting ", kSetting, " is '", text, "', no number"));
  }
  return Timeline(clock, std::chrono::duration_cast<Clock::Wall::duration>(std::chrono::milliseconds(ahead)));
}

std::optional<Clock::Wall::duration> Timeline::unkept() const {
  const Clock::Wall::duration set = kept_ - ahead();
  if (set < kStep && set > -kStep) return std::nullopt;
  return set;
}

store::SettingRow Timeline::row(Clock::Wall::duration ahead) {
  return {kSetting, absl::StrCat(std::chrono::duration_cast<std::chrono::milliseconds>(ahead).count())};
}

}  // namespace telar::server::jobs
