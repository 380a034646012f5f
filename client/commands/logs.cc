#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/commands/call.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/follow_job.h"
#include "client/commands/report.h"
#include "client/commands/resolve_job.h"
#include "client/commands/stream.h"
#include "client/output/format.h"

namespace telar::client {
namespace {

// Copies one rank's log to stdout and knows at every moment which byte comes next.
class LogCopy {
 public:
  LogCopy(Context& context, const v1::Job& job, const LogsOptions& options)
      : context_(context),
        contact_(context, [&](const std::string& text) { context.err() << text << "\n"
                                                                       << std::flush; }),
        all_epochs_(options.epoch == 0) {
    request_.set_name(job.name());
    request_.set_rank(options.rank);
    request_.set_epoch(options.epoch);
    request_.set_offset(options.offset);
    request_.set_follow(options.follow);
  }

  // To the end of what there is, or with follow to the end of the job.
  Followed run(v1::Job& job) {
    for (;;) {
      Followed followed = follow_stream<v1::LogChunk>(context_, contact_, std::nullopt, open_, take_);
      if (followed.end != FollowEnd::kServerEnded) return followed;
      if (absl::StatusOr<v1::Job> now = get_job(context_, request_.name()); now.ok()) job = *std::move(now);
      // A stream resumed inside one epoch ends with it.
      if (all_epochs_ && request_.epoch() > 0 && request_.epoch() < job.epoch()) {
        request_.set_epoch(request_.epoch() + 1);
        request_.set_offset(0);
        continue;
      }
      const bool whole = !request_.follow() || is_terminal(job.state()) || !all_epochs_;
      if (whole) return followed;
      if (!contact_.wait_to_retry()) return {FollowEnd::kLost, absl::UnavailableError("the stream ended early")};
      if (context_.interrupt.requested()) return {FollowEnd::kDetached, {}};
    }
  }

 private:
  bool take(const v1::LogChunk& chunk) {
    if (chunk.data().empty() && chunk.missing() == 0) return true;  // Heartbeat.
    if (chunk.epoch() != request_.epoch()) {
      if (request_.epoch() != 0) request_.set_offset(0);  // Of the epoch after; 0 stood for "the first".
      request_.set_epoch(chunk.epoch());
    }
    const uint64_t wanted = request_.offset();
    if (chunk.missing() > 0) return skip(chunk.offset() + chunk.missing());
    if (chunk.offset() > wanted) {
      context_.err() << "warning: bytes " << wanted << " to " << chunk.offset() << " of the log of rank "
                     << chunk.rank() << ", epoch " << chunk.epoch() << ", are missing\n";
    }
    const uint64_t known = wanted > chunk.offset() ? wanted - chunk.offset() : 0;
    if (known >= chunk.data().size()) return true;
    context_.out().write(chunk.data().data() + known, static_cast<std::streamsize>(chunk.data().size() - known));
    context_.out() << std::flush;
    line_open_ = chunk.data().back() != '\n';
    request_.set_offset(chunk.offset() + chunk.data().size());
    return context_.out().good();  // Nobody reads any more, as behind `| head`.
  }

  // In the log's place, where whoever reads it will look.
  bool skip(uint64_t end) {
    if (end <= request_.offset()) return true;
    if (line_open_) context_.out() << "\n";
    line_open_ = false;
    context_.out() << "[telar: " << end - request_.offset() << " bytes of this log are missing here]\n" << std::flush;
    request_.set_offset(end);
    return context_.out().good();
  }

  Context& context_;
  Contact contact_;
  const bool all_epochs_;
  bool line_open_ = false;      // What was printed last did not end a line.
  v1::ReadLogRequest request_;  // For the next attempt: always asks for the next byte.
  const StreamReader<v1::LogChunk>::Open open_ = [this](grpc::ClientContext* client, grpc::CompletionQueue* queue) {
    return context_.jobs->PrepareAsyncReadLog(client, request_, queue);
  };
  const std::function<bool(v1::LogChunk&)> take_ = [this](v1::LogChunk& chunk) { return take(chunk); };
};

}  // namespace

int logs(Context& context, const LogsOptions& options) {
  absl::StatusOr<v1::Job> job = resolve_job(context, options.job);
  if (!job.ok()) return report(context, job.status());
  context.interrupt.arm();
  LogCopy copy(context, *job, options);
  const Followed followed = copy.run(*job);
  switch (followed.end) {
    case FollowEnd::kServerEnded:
      return options.follow && is_terminal(job->state()) ? exit_code(job->state()) : kOk;
    case FollowEnd::kDetached:
      if (options.follow) say_detached(context, job->name());
      return kOk;
    case FollowEnd::kLost:
      context.err() << "error: lost the coordinator at " << context.options.coordinator << " ("
                    << one_line(std::string(followed.status.message())) << ")\n";
      return kLost;
    case FollowEnd::kError:
      return report(context, followed.status);
    default:
      return kOk;
  }
}

}  // namespace telar::client
