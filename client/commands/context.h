// What every command is given: the global options, the streams, the clock, the way to be interrupted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <iosfwd>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/tls.h"
#include "google/protobuf/message.h"
#include "telar/v1/jobs.grpc.pb.h"

namespace telar::client {

using Milliseconds = std::chrono::milliseconds;

enum class Output { kTable, kWide, kJson, kYaml, kName };

struct Options {
  std::string coordinator = "127.0.0.1:7070";
  TlsFiles tls;            // Of a person only `ca`.
  std::string token_file;  // Empty: none; TELAR_TOKEN goes first.
  std::string project;     // Empty: `default` to submit to and to find an id in, all to list.
  Output output = Output::kTable;
  bool no_headers = false;
  std::optional<Milliseconds> timeout;  // Of a call: default 10 s. Of a stream, without contact: default 60 s.
};

// Ctrl-C, as a flag that a waiting command sees. Thread-safe.
class Interrupt {
 public:
  void arm();  // The command can detach from here on.
  // False: nobody can detach, or it was asked for before; the caller ends the program.
  bool trigger();
  bool requested() const;
  // Sleeps; true at once when requested.
  bool wait_for(Milliseconds time);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool armed_ = false;
  bool requested_ = false;
};

struct Terminal {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool live = false;          // err is a terminal: one line is redrawn.
  bool colour = false;        // live, and the user has not set NO_COLOR.
  int (*width)() = nullptr;   // Columns of that terminal; none: 80.
  int (*height)() = nullptr;  // Lines; none: 24.
  bool unicode = false;       // It shows more than ASCII.
};

struct Context {
  Options options;
  Terminal terminal;
  const Clock& clock;
  Interrupt& interrupt;
  std::unique_ptr<v1::Jobs::StubInterface> jobs;
  std::unique_ptr<v1::Nodes::StubInterface> nodes = nullptr;
  // After UNAUTHENTICATED: whether it is worth one more try. Empty: it never is.
  std::function<bool()> renew_token = {};

  std::ostream& out() { return terminal.out; }
  std::ostream& err() { return terminal.err; }
  bool header() const { return !options.no_headers; }
  bool wide() const { return options.output == Output::kWide; }
  int64_t now_seconds() const;  // Unix time.
  // "projects/lab"; without a project of one's own, projects/default.
  std::string parent() const { return "projects/" + (options.project.empty() ? "default" : options.project); }
  Milliseconds call_timeout() const { return options.timeout.value_or(std::chrono::seconds(10)); }
  Milliseconds stream_timeout() const { return options.timeout.value_or(std::chrono::seconds(60)); }
  // With -o json or yaml prints the message and returns true.
  bool print_message(const google::protobuf::Message& message);
};

// "90", "90s", "1.5m", "2h", "250ms"; a bare number counts seconds. Positive, at most a year.
std::optional<Milliseconds> parse_duration(const std::string& text);

}  // namespace telar::client
