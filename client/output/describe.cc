#include "client/output/describe.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/output/format.h"
#include "client/output/message.h"
#include "client/output/table.h"
#include "client/output/waiting.h"

namespace telar::client {

std::string page_field(const std::string& name, const std::string& value) {
  const std::string label = name + ":";
  return label + std::string(label.size() < 13 ? 13 - label.size() : 1, ' ') + value + "\n";
}

// Which device has which part of the model: ranks are numbered ((pp * data) + dp) * tensor + tp.
std::string placement_table(const v1::Job& job) {
  if (job.placement().empty()) return "";
  const v1::ParallelSpec& parallel = job.spec().parallel();
  const uint32_t replicas = job.data_parallel() > 0 ? job.data_parallel() : parallel.data();
  const uint32_t tensor = std::max(1u, parallel.tensor()), data = std::max(1u, replicas);
  Table table({"RANK", "PP", "DP", "TP", "NODE", "DEVICE", "STATE", "PID", "EXIT", "MESSAGE"});
  for (const v1::RankPlacement& one : job.placement()) {
    const std::string device = absl::StrCat(absl::AsciiStrToLower(v1::ResourceSpec::Kind_Name(one.device().kind())),
                                            ":", one.device().index());
    table.add({absl::StrCat(one.rank()), absl::StrCat(one.rank() / tensor / data),
               absl::StrCat(one.rank() / tensor % data), absl::StrCat(one.rank() % tensor), one.node(), device,
               one.state() == v1::RankPlacement::STATE_UNSPECIFIED ? "-" : v1::RankPlacement::State_Name(one.state()),
               one.pid() > 0 ? absl::StrCat(one.pid()) : "-",
               one.state() == v1::RankPlacement::EXITED ? absl::StrCat(one.exit_code()) : "-",
               one_line(one.message())});
  }
  return "Placement:\n" + table.text(true, "  ");
}

namespace {

std::string field(const std::string& name, const std::string& value) { return page_field(name, value); }

// Generated text on lines of its own; whatever bytes the model made, nothing but text reaches the terminal.
std::string sample_block(const std::string& text) {
  std::istringstream lines(text);
  std::string block;
  for (std::string line; std::getline(lines, line);) block += "  " + one_line(line) + "\n";
  return block;
}

// What a run has brought so far.
std::string results(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  std::string page;
  if (progress.step() > 0) {
    page += field("Loss", loss(progress.first_loss()) + " -> " + loss(progress.loss()));
    if (progress.eval_loss() != 0) {
      page += field("Eval loss", loss(progress.eval_loss()) + source_losses(progress.eval_sources()));
    }
    if (progress.tokens_per_second() > 0) {
      page += field("Speed", absl::StrCat(count(progress.tokens_per_second()), " tokens/s, MFU ", mfu(progress)));
    }
  }
  if (!progress.checkpoint_path().empty()) {
    page += field("Checkpoint",
                  absl::StrCat(one_line(progress.checkpoint_path()), " (step ", progress.checkpoint_step(), ")"));
  }
  if (!progress.resumed_from().empty()) page += field("Resumed", one_line(progress.resumed_from()));
  for (const std::string& passed_over : progress.passed_over()) page += field("Passed over", one_line(passed_over));
  if (!job.run_dir().empty()) page += field("Run dir", one_line(job.run_dir()));
  page += field("Logs", "telar logs " + id_of(job.name()));
  if (!progress.sample().empty()) page += "Sample:\n" + sample_block(progress.sample());
  return page;
}

std::string failure_class(const v1::Job& job) {
  return absl::AsciiStrToLower(v1::FailureClass_Name(job.failure_class()));
}

std::string conditions(const v1::Job& job) {
  std::string page;
  for (const v1::Condition& one : job.conditions()) {
    page += field("Condition", one.type() + ", " + time_text(one.time()) + ": " + one_line(one.message()));
  }
  return page;
}

std::string times(const v1::Job& job, int64_t now_seconds) {
  std::string page =
      field("Created", time_text(job.create_time()) + " (" + age(job.create_time(), now_seconds) + " ago)");
  if (job.has_start_time()) page += field("Started", time_text(job.start_time()));
  if (job.has_end_time()) page += field("Ended", time_text(job.end_time()));
  // In the past it was the job's turn long ago, and what it waits for now is said elsewhere.
  if (job.state() == v1::Job::QUEUED && job.retry_time().seconds() > now_seconds) {
    page += field("Retry", "not before " + time_text(job.retry_time()));
  }
  return page;
}

// What had no part in it is left out.
std::string goodput(const v1::Goodput& goodput) {
  const double all = goodput.queued_seconds() + goodput.starting_seconds() + goodput.productive_seconds() +
                     goodput.lost_seconds() + goodput.stalled_seconds() + goodput.recovering_seconds() +
                     goodput.ending_seconds();
  if (all <= 0 || goodput.productive_seconds() <= 0) return "";
  std::string text = absl::StrFormat("%.1f%% productive", 100 * goodput.productive_seconds() / all);
  const auto part = [&](const char* name, double seconds) {
    if (seconds >= 0.5) absl::StrAppend(&text, ", ", name, " ", duration(seconds));
  };
  part("queued", goodput.queued_seconds());
  part("starting", goodput.starting_seconds());
  part("lost", goodput.lost_seconds());
  if (goodput.lost_steps() > 0) absl::StrAppend(&text, " (", goodput.lost_steps(), " steps done again)");
  part("stalled by saves", goodput.stalled_seconds());
  part("recovering", goodput.recovering_seconds());
  part("ending", goodput.ending_seconds());
  return field("Time", text);
}

std::string scheduling(const v1::Job& job) {
  const v1::SchedulingSpec& wishes = job.spec().scheduling();
  std::string page;
  if (!wishes.queue().empty()) {
    page += field("Queue", absl::StrCat(one_line(wishes.queue()), ", priority ", wishes.priority()));
  }
  if (!job.array().empty()) {
    page += field("Array", absl::StrCat("task ", job.array_index(), " of ", id_of(job.array())));
  }
  if (job.run_seconds() > 0 || wishes.time_limit_seconds() > 0) {
    const uint64_t limit = wishes.time_limit_seconds();
    page += field(
        "Ran", duration(job.run_seconds()) + (limit > 0 ? " of at most " + duration(static_cast<double>(limit)) : ""));
  }
  page += goodput(job.goodput());
  if (job.preemptions() > 0) {
    page += field("Preempted", job.preemptions() == 1 ? "once" : absl::StrCat(job.preemptions(), " times"));
  }
  return page;
}

std::string indented(const std::string& text) {
  std::istringstream lines(text);
  std::string block;
  for (std::string line; std::getline(lines, line);) block += "  " + line + "\n";
  return block;
}

}  // namespace

std::string describe_page(const v1::Job& job, int64_t now_seconds) {
  std::string page = field("Job", id_of(job.name()));
  if (!job.spec().name().empty()) page += field("Name", one_line(job.spec().name()));
  page += field("Full name", job.name()) + field("Uid", job.uid());
  page += field("State", v1::Job::State_Name(job.state()));
  if (!job.message().empty()) page += field("Message", one_line(job.message()));
  if (job.failure_class() != v1::FAILURE_CLASS_UNSPECIFIED) page += field("Failure", failure_class(job));
  page += scheduling(job) + waiting_block(job, now_seconds) + conditions(job) + times(job, now_seconds);
  page += field("Epoch", absl::StrCat(job.epoch(), " (restarts ", job.restarts(), ", after node loss ",
                                      job.node_restarts(), ")"));
  if (job.parameters() > 0) page += field("Parameters", count(static_cast<double>(job.parameters())));
  if (job.progress().total_steps() > 0) {
    std::string step = absl::StrCat(job.progress().step(), "/", job.progress().total_steps());
    if (!is_terminal(job.state()) && job.progress().eta_seconds() > 0) {
      step += ", ETA " + duration(job.progress().eta_seconds());
    }
    page += field("Step", step);
  }
  page += results(job) + placement_table(job);
  return page + "Spec:\n" + indented(to_yaml(job.spec()));
}

std::string summary(const v1::Job& job) {
  std::string page = "Job " + id_of(job.name()) + " " + v1::Job::State_Name(job.state());
  if (job.progress().total_steps() > 0) {
    absl::StrAppend(&page, " at step ", job.progress().step(), "/", job.progress().total_steps());
  }
  if (job.has_start_time() && job.has_end_time()) {
    page += " after " + duration(static_cast<double>(job.end_time().seconds() - job.start_time().seconds()));
  }
  page += "\n";
  if (job.state() == v1::Job::FAILED) page += field("Failure", failure_class(job));
  if (!job.message().empty()) page += field("Message", one_line(job.message()));
  return page + results(job);
}

}  // namespace telar::client
