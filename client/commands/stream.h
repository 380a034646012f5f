// Server streams that are read with a deadline and resumed after a lost connection.
#pragma once

#include <functional>
#include <memory>

#include <grpcpp/support/async_stream.h>

#include "absl/status/status.h"
#include "client/commands/context.h"
#include "common/errors.h"

namespace telar::client {

// One stream, read in one thread without ever blocking for longer than asked.
template <typename Response>
class StreamReader {
 public:
  using Reader = grpc::ClientAsyncReaderInterface<Response>;
  using Open = std::function<std::unique_ptr<Reader>(grpc::ClientContext*, grpc::CompletionQueue*)>;  // Prepare...()
  enum class Next { kMessage, kNothing, kEnd };

  explicit StreamReader(const Open& open) : reader_(open(&client_, &queue_)) { reader_->StartCall(this); }
  ~StreamReader() {
    if (!ended_) client_.TryCancel();
    wait();
    if (!ended_) finish();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  StreamReader(const StreamReader&) = delete;
  StreamReader& operator=(const StreamReader&) = delete;

  // kNothing: none came within `patience`. After kEnd status() says how the stream ended.
  Next next(Response& response, Milliseconds patience) {
    const auto deadline = std::chrono::system_clock::now() + patience;
    for (;;) {
      void* tag = nullptr;
      bool ok = false;
      const auto got = queue_.AsyncNext(&tag, &ok, deadline);
      if (got == grpc::CompletionQueue::TIMEOUT) return Next::kNothing;
      pending_ = false;
      if (!ok) {
        finish();
        return Next::kEnd;
      }
      const bool message = started_;
      started_ = true;
      if (message) response.Swap(&buffer_);
      buffer_.Clear();
      pending_ = true;
      reader_->Read(&buffer_, this);
      if (message) return Next::kMessage;
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  void wait() {
    void* tag = nullptr;
    bool ok = false;
    if (pending_) queue_.Next(&tag, &ok);
    pending_ = false;
  }
  void finish() {
    grpc::Status status;
    reader_->Finish(&status, this);
    pending_ = true;
    wait();
    status_ = from_grpc(status);
    ended_ = true;
  }

  grpc::ClientContext client_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<Reader> reader_;
  Response buffer_;
  absl::Status status_;
  bool pending_ = true;  // The queue owes one event: the start, a read or the finish.
  bool started_ = false;
  bool ended_ = false;
};

// Keeps the time since the coordinator was last heard, and the back-off between attempts.
class Contact {
 public:
  Contact(Context& context, std::function<void(const std::string&)> say) : context_(context), say_(std::move(say)) {}
  void attempt();  // A stream is being opened.
  void made();     // A message came.
  // The stream broke: says so once an outage, then sleeps. False: out of time.
  bool wait_to_retry();
  // No message of this attempt, not even a heartbeat, for so long that the stream must be dead.
  bool silent() const;

 private:
  Context& context_;
  const std::function<void(const std::string&)> say_;
  Clock::Steady last_ = context_.clock.now();
  Clock::Steady attempt_ = last_;
  Milliseconds delay_{0};
};

enum class FollowEnd { kServerEnded, kStopped, kDetached, kTimedOut, kLost, kError };
struct Followed {
  FollowEnd end = FollowEnd::kServerEnded;
  absl::Status status;  // Of kError and kLost.
};

// Whether a broken stream is worth another attempt.
bool is_lost_connection(const absl::Status& status);
inline constexpr Milliseconds kTick{100};  // How soon a follower sees Ctrl-C and its deadline.

// Reads a stream to its end. `open` is called for each attempt and asks for what is still missing. `take` handles one
// message; false stops (kStopped). `deadline`: kTimedOut after it. `idle` is called at each kTick without a message.
template <typename Response>
Followed follow_stream(Context& context, Contact& contact, std::optional<Clock::Steady> deadline,
                       const typename StreamReader<Response>::Open& open, const std::function<bool(Response&)>& take,
                       const std::function<void()>& idle = {}) {
  using Next = typename StreamReader<Response>::Next;
  for (bool renewed = false;;) {
    contact.attempt();
    StreamReader<Response> stream(open);
    absl::Status broken;
    bool again = false;  // At once, with the token read again.
    Response response;
    for (bool going = true; going;) {
      switch (stream.next(response, kTick)) {
        case Next::kMessage:
          contact.made();
          renewed = false;
          if (!take(response)) return {FollowEnd::kStopped, {}};
          break;
        case Next::kEnd:
          if (stream.status().ok()) return {FollowEnd::kServerEnded, {}};
          if (absl::IsUnauthenticated(stream.status()) && !renewed && context.renew_token && context.renew_token()) {
            renewed = again = true;
            going = false;
            break;
          }
          if (!is_lost_connection(stream.status())) return {FollowEnd::kError, stream.status()};
          broken = stream.status();
          going = false;
          break;
        case Next::kNothing:
          if (idle) idle();
          if (!contact.silent()) break;
          broken = absl::UnavailableError("the stream fell silent");
          going = false;
          break;
      }
      if (context.interrupt.requested()) return {FollowEnd::kDetached, {}};
      if (deadline && context.clock.now() >= *deadline) return {FollowEnd::kTimedOut, {}};
    }
    if (again) continue;
    if (!contact.wait_to_retry()) return {FollowEnd::kLost, broken};
    if (context.interrupt.requested()) return {FollowEnd::kDetached, {}};
  }
}

}  // namespace telar::client
