#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/output/format.h"
#include "client/output/job_view.h"
#include "client/output/view_line.h"

namespace telar::client {
namespace {

constexpr size_t kBarColumns = 12;

std::string counts_of(const v1::ListJobsResponse& jobs) {
  std::map<v1::Job::State, size_t> states;
  for (const v1::Job& job : jobs.jobs()) ++states[job.state()];
  std::string text = absl::StrCat(jobs.jobs_size(), jobs.jobs_size() == 1 ? " live job" : " live jobs");
  for (const auto& [state, number] : states) absl::StrAppend(&text, ", ", number, " ", v1::Job::State_Name(state));
  return text;
}

std::vector<std::string> row_of(const v1::Job& job, int64_t now_seconds, bool unicode) {
  const v1::Progress& progress = job.progress();
  const bool begun = progress.step() > 0 && progress.total_steps() > 0;
  const double share = begun ? static_cast<double>(progress.step()) / static_cast<double>(progress.total_steps()) : 0;
  return {id_of(job.name()),
          v1::Job::State_Name(job.state()),
          bar(share, kBarColumns, unicode),
          progress.total_steps() == 0 ? "-" : absl::StrCat(progress.step(), "/", progress.total_steps()),
          loss(progress.loss()),
          progress.tokens_per_second() > 0 ? count(progress.tokens_per_second()) : "-",
          begun ? mfu(progress) : "-",
          progress.eta_seconds() > 0 ? duration(progress.eta_seconds()) : "-",
          age(job.create_time(), now_seconds),
          or_dash(one_line(job.spec().name())),
          job.state() == v1::Job::RUNNING ? "" : one_line(job.message())};
}

}  // namespace

std::vector<std::string> jobs_view(const v1::ListJobsResponse& jobs, const std::string& note, int64_t now_seconds,
                                   const ViewStyle& style) {
  std::vector<std::string> lines;
  const auto line = [&] { return ViewLine(style.width, style.colour); };
  lines.push_back(line().add(counts_of(jobs), ViewLine::kBold).text());
  if (!note.empty()) lines.push_back(line().add(one_line(note), ViewLine::kRed).text());
  if (jobs.jobs().empty()) return lines;
  lines.emplace_back();
  const size_t used = lines.size() + 2;  // Heading, and a line for those that are not shown.
  const size_t room = style.height > used ? style.height - used : 1;
  const auto all = static_cast<size_t>(jobs.jobs_size());
  const size_t shown = all <= room + 1 ? all : room;
  Table table({"JOB", "STATE", "DONE", "STEP", "LOSS", "TOKENS/S", "MFU", "ETA", "AGE", "NAME", ""});
  for (size_t i = 0; i < shown; ++i) table.add(row_of(jobs.jobs(static_cast<int>(i)), now_seconds, style.unicode));
  const std::string text = table.text(true);
  size_t at = 0;
  for (size_t i = 0; i <= shown; ++i) {
    const size_t end = text.find('\n', at);
    const char* colour = i == 0 ? ViewLine::kDim : state_colour(jobs.jobs(static_cast<int>(i) - 1).state());
    lines.push_back(line().add(text.substr(at, end - at), colour).text());
    at = end + 1;
  }
  if (shown < all) lines.push_back(line().add(absl::StrCat("and ", all - shown, " more"), ViewLine::kDim).text());
  if (lines.size() > style.height) lines.resize(style.height);
  return lines;
}

}  // namespace telar::client
