#include "client/output/waiting.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/describe.h"
#include "client/output/format.h"
#include "client/output/table.h"

namespace telar::client {
namespace {

std::string devices_table(const v1::Waiting& waiting) {
  if (waiting.devices().empty()) return "";
  Table table({"DEVICES", "COUNT", "NODES"});
  for (const v1::DeviceCount& one : waiting.devices()) {
    table.add({one_line(one.why()), absl::StrCat(one.devices()), absl::StrCat(one.nodes())});
  }
  return table.text(true, "  ");
}

std::string earliest(const v1::Waiting& waiting, int64_t now_seconds) {
  if (!waiting.has_earliest_start()) return waiting.never() ? "never, as it is" : "nobody can tell";
  const int64_t left = waiting.earliest_start().seconds() - now_seconds;
  return absl::StrCat(time_text(waiting.earliest_start()),
                      left > 0 ? " (in " + duration(static_cast<double>(left)) + ")" : "");
}

}  // namespace

std::string waiting_reason(const v1::Job& job) {
  if (!job.has_waiting()) return "";
  const std::string reason = absl::AsciiStrToLower(v1::Waiting::Reason_Name(job.waiting().reason()));
  return reason + (job.waiting().never() ? ", never" : "");
}

std::string waiting_block(const v1::Job& job, int64_t now_seconds) {
  if (!job.has_waiting()) return "";
  const v1::Waiting& waiting = job.waiting();
  std::string page = page_field("Waits for", waiting_reason(job));
  if (!waiting.message().empty()) page += page_field("Why", one_line(waiting.message()));
  if (!waiting.unblock().empty()) page += page_field("Starts once", one_line(waiting.unblock()));
  page += page_field("Starts", earliest(waiting, now_seconds));
  if (!waiting.behind().empty()) {
    page += page_field("Behind", absl::StrJoin(waiting.behind(), ", ", [](std::string* out, const std::string& name) {
                         absl::StrAppend(out, one_line(id_of(name)));
                       }));
  }
  return page + devices_table(waiting);
}

std::string explain_page(const v1::Job& job, int64_t now_seconds) {
  std::string page = page_field("Job", id_of(job.name())) + page_field("State", v1::Job::State_Name(job.state()));
  page += page_field("Queue", absl::StrCat(one_line(job.spec().scheduling().queue()), ", priority ",
                                           job.spec().scheduling().priority()));
  if (job.has_waiting()) return page + waiting_block(job, now_seconds);
  if (!job.message().empty()) page += page_field("Message", one_line(job.message()));
  if (job.state() == v1::Job::QUEUED) page += page_field("Waits for", "the next round of the scheduler");
  return page + placement_table(job);
}

std::string dry_run_page(const v1::Job& job, int64_t now_seconds) {
  const std::string chosen = job.message().empty() ? "" : one_line(job.message()) + "\n";
  if (job.has_waiting()) return chosen + "it would wait\n" + waiting_block(job, now_seconds);
  if (job.placement().empty()) return chosen;
  return absl::StrCat(chosen, "it would start at once, on ", job.placement_size(),
                      job.placement_size() == 1 ? " device\n" : " devices\n") +
         placement_table(job);
}

}  // namespace telar::client
