#include "client/commands/trace_job.h"

#include <algorithm>
#include <ostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/commands/call.h"
#include "client/commands/exit_codes.h"
#include "client/commands/live_line.h"
#include "client/commands/report.h"
#include "client/commands/resolve_job.h"
#include "client/commands/stream.h"
#include "client/output/format.h"
#include "common/process.h"

namespace telar::client {
namespace {

constexpr Milliseconds kBetweenLooks{500};
constexpr Milliseconds kRedraw{100};

const v1::JobTrace* find_trace(const v1::Job& job, uint64_t step) {
  for (const v1::JobTrace& one : job.traces()) {
    if (one.step() == step) return &one;
  }
  return nullptr;
}

class TraceOfJob {
 public:
  TraceOfJob(Context& context, const TraceOptions& options)
      : context_(context),
        options_(options),
        line_(context),
        contact_(context, [this](const std::string& text) { line_.note(text); }) {}

  FetchedTrace run() {
    const absl::StatusOr<v1::Job> job = resolve_job(context_, options_.of[0]);
    if (!job.ok()) return failed(job.status());
    job_ = *job;
    if (const absl::Status status = choose_steps(); !status.ok()) return failed(status);
    if (!all_recorded()) {
      if (const absl::Status status = ask(); !status.ok()) return failed(status);
    }
    context_.interrupt.arm();
    FetchedTrace result;
    result.code = wait();
    if (result.code != kOk || left_) return result;
    result.name = absl::StrCat(id_of(job_.name()), "-", first_);
    traces_.emplace(first_, options_.steps);
    result.code = fetch();
    if (result.code == kOk && !left_) result.traces = std::move(traces_);
    return result;
  }

 private:
  FetchedTrace failed(const absl::Status& status) {
    line_.clear();
    return {.traces = std::nullopt, .name = "", .code = report(context_, status)};
  }

  absl::Status choose_steps() {
    if (options_.step == "next") return absl::OkStatus();
    if (!options_.step.empty()) {
      if (absl::SimpleAtoi(options_.step, &first_) && first_ > 0) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("--step: got '", options_.step, "', want the number of a step, or next"));
    }
    std::vector<uint64_t> there;
    for (const v1::JobTrace& one : job_.traces()) {
      if (one.state() == v1::JobTrace::RECORDED) there.push_back(one.step());
    }
    if (there.size() == 1) {
      first_ = there[0];
      return absl::OkStatus();
    }
    std::sort(there.begin(), there.end());
    return absl::InvalidArgumentError(absl::StrCat(
        "which step? --step N of one to come, --step next",
        there.empty() ? std::string() : absl::StrCat(", or one that is there: ", absl::StrJoin(there, ", "))));
  }

  bool all_recorded() const {
    if (first_ == 0) return false;
    for (uint64_t step = first_; step < first_ + options_.steps; ++step) {
      const v1::JobTrace* trace = find_trace(job_, step);
      if (trace == nullptr || trace->state() == v1::JobTrace::WANTED) return false;
      if (trace->recorded() == 0) return false;
    }
    return true;
  }

  absl::Status ask() {
    v1::TraceJobRequest request;
    request.set_name(job_.name());
    request.set_step(first_);
    request.set_steps(options_.steps);
    request.set_request_id(uuid4());
    const absl::StatusOr<v1::Job> asked = call(context_, &v1::Jobs::StubInterface::TraceJob, request, true);
    if (!asked.ok()) return asked.status();
    job_ = *asked;
    for (const v1::JobTrace& one : job_.traces()) {
      if (one.request_id() != request.request_id()) continue;
      first_ = first_ == 0 ? one.step() : std::min(first_, one.step());
    }
    return first_ > 0 ? absl::OkStatus() : absl::InternalError("the coordinator's answer names no step");
  }

  // The first of the steps that not all ranks have answered; none: all have.
  const v1::JobTrace* pending() const {
    for (uint64_t step = first_; step < first_ + options_.steps; ++step) {
      const v1::JobTrace* trace = find_trace(job_, step);
      if (trace != nullptr && trace->state() == v1::JobTrace::WANTED) return trace;
    }
    return nullptr;
  }

  std::string progress(const v1::JobTrace& trace) const {
    const v1::Progress& at = job_.progress();
    if (trace.recorded() + trace.missed() > 0) {
      return absl::StrCat("step ", trace.step(), ": ", trace.recorded() + trace.missed(), " of ", job_.placement_size(),
                          " ranks have answered");
    }
    std::string line = absl::StrCat("waiting for step ", trace.step(), ": ", v1::Job::State_Name(job_.state()),
                                    " at step ", at.step());
    if (at.tokens_per_second() > 0 && at.step() < trace.step()) {
      const v1::BatchSpec& batch = job_.spec().batch();
      const double tokens = static_cast<double>(batch.global()) * static_cast<double>(batch.sequence_length());
      const double seconds = tokens / at.tokens_per_second();
      absl::StrAppend(&line, ", about ", duration(seconds * static_cast<double>(trace.step() - at.step())));
    }
    return line;
  }

  int wait() {
    const auto began = context_.clock.now();
    const v1::JobTrace* trace = nullptr;
    for (bool told = false; (trace = pending()) != nullptr; told = true) {
      if (is_terminal(job_.state())) {
        line_.clear();
        context_.err() << "error: job " << id_of(job_.name()) << " ended (" << v1::Job::State_Name(job_.state())
                       << ") at step " << job_.progress().step() << "; not all ranks recorded step " << trace->step()
                       << "\n";
        return kRefused;
      }
      if (line_.live()) {
        line_.draw(line_.fit(progress(*trace)));
      } else if (!told) {
        context_.err() << progress(*trace) << "\n" << std::flush;
      }
      if (context_.interrupt.wait_for(kBetweenLooks)) return leave();
      if (options_.wait_timeout && context_.clock.now() - began >= *options_.wait_timeout) {
        say_how_to_go_on("still waiting");
        return kTimedOut;
      }
      absl::StatusOr<v1::Job> now = get_job(context_, job_.name());
      if (!now.ok()) return failed(now.status()).code;
      job_ = *std::move(now);
    }
    line_.clear();
    return check_recorded();
  }

  int check_recorded() {
    for (uint64_t step = first_; step < first_ + options_.steps; ++step) {
      const v1::JobTrace* trace = find_trace(job_, step);
      if (trace == nullptr || trace->missed() == 0) continue;
      const char* what =
          trace->recorded() == 0 ? "error: no rank recorded step " : "warning: not all ranks recorded step ";
      context_.err() << what << step << "; " << one_line(trace->message()) << "\n";
      if (trace->recorded() == 0) return kRefused;
    }
    return kOk;
  }

  int leave() {
    left_ = true;
    say_how_to_go_on("left");
    return kOk;
  }
  void say_how_to_go_on(const char* what) {
    line_.clear();
    context_.err() << what << "; the ranks record it all the same: telar trace " << id_of(job_.name()) << " --step "
                   << first_ << (options_.steps > 1 ? absl::StrCat(" --steps ", options_.steps) : "") << "\n";
  }

  int fetch() {
    for (uint64_t step = first_; step < first_ + options_.steps; ++step) {
      request_.Clear();
      request_.set_name(job_.name());
      request_.set_step(step);
      traces_->only_epoch(find_trace(job_, step)->epoch());
      file_.clear();
      const Followed followed = follow_stream<v1::TraceChunk>(context_, contact_, std::nullopt, open_, take_);
      line_.clear();
      if (!broken_.ok()) return report(context_, broken_);
      if (followed.end == FollowEnd::kDetached) return leave();
      if (followed.end == FollowEnd::kError) return report(context_, followed.status);
      if (followed.end == FollowEnd::kServerEnded && file_.empty()) continue;
      context_.err() << "error: lost the coordinator at " << context_.options.coordinator << " ("
                     << one_line(std::string(followed.status.message())) << ")\n";
      return kLost;
    }
    return kOk;
  }

  // False: no use in going on.
  bool take(const v1::TraceChunk& chunk) {
    if (chunk.rank() != request_.rank() || chunk.offset() != request_.offset()) {
      if (chunk.offset() != 0)
        broken_ = absl::DataLossError(absl::StrCat("a piece of rank ", chunk.rank(), " is missing"));
      file_.clear();  // A rank without a file is passed over.
    }
    if (!broken_.ok()) return false;
    file_ += chunk.data();
    bytes_ += chunk.data().size();
    request_.set_rank(chunk.rank());
    request_.set_offset(chunk.offset() + chunk.data().size());
    if (line_.live() && line_.due(kRedraw)) {
      line_.draw(line_.fit(absl::StrFormat("fetching step %d: rank %d, %.1f MB", request_.step(), chunk.rank(),
                                           1e-6 * static_cast<double>(bytes_))));
    }
    if (!chunk.last()) return true;
    broken_ = traces_->add(absl::StrCat("rank ", chunk.rank(), ", step ", request_.step()), file_);
    file_.clear();
    request_.set_rank(chunk.rank() + 1);
    request_.set_offset(0);
    return broken_.ok();
  }

  Context& context_;
  const TraceOptions& options_;
  LiveLine line_;
  Contact contact_;
  v1::Job job_;
  uint64_t first_ = 0;  // Of options_.steps.
  bool left_ = false;
  v1::ReadTraceRequest request_;  // For the next attempt: asks for the next byte.
  std::string file_;              // Of the rank that is being fetched.
  uint64_t bytes_ = 0;
  absl::Status broken_;
  std::optional<TraceSet> traces_;
  const StreamReader<v1::TraceChunk>::Open open_ = [this](grpc::ClientContext* client, grpc::CompletionQueue* queue) {
    return context_.jobs->PrepareAsyncReadTrace(client, request_, queue);
  };
  const std::function<bool(v1::TraceChunk&)> take_ = [this](v1::TraceChunk& chunk) { return take(chunk); };
};

}  // namespace

FetchedTrace fetch_trace(Context& context, const TraceOptions& options) { return TraceOfJob(context, options).run(); }

}  // namespace telar::client
