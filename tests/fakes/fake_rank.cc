// A rank without training: does what its plan's spec.name says, word by word, so that tests can play every end; where a
// coordinator lets no such name in, what spec.sample.prompt says. If the first of spec.data.train is a *.script, what
// that file says; or FILE.N for rank N, where it is there.
//
//   started        RankStarted event             step:N        N StepReports, numbered on
//   run[:MS]       a step and a log line each 2 ms until SIGTERM, then RankFinished{interrupted} and exit code 10
//   pause:MS       nothing, for so long                once:WORD     only in the first epoch: what WORD says
//   print:TEXT     a log line                    bytes:N       N log bytes, of a pattern without period 256
//   ignore_term    from here on                  fork          a grandchild in a session of its own that sleeps on and
//   partial        half an event line                          keeps the log open; its pid is in <dir>/grandchild
//   fail:CLASS:TEXT  RankFailure                 finish        RankFinished
//   exit:N | abort | hang                        environment   all of it, into the log
//   flight         a flight file with a call of group "world.0" that is over and one that is under way
//   paced:N:MS     N steps of 2 ms and then MS ms of its own; it has waited for peers in all that is left of 10 ms
//   lines:N        N numbered log lines          hold:FILE     opens it and keeps it open, children too
//   escape         a grandchild in a session of its own that has dropped the environment; its pid is in <dir>/escaped
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/time_util.h>

#include "telar/v1/rank.pb.h"
#include "worker/flight/recorder.h"

namespace {

using telar::v1::RankEvent;

volatile sig_atomic_t terminated = 0;

class FakeRank {
 public:
  FakeRank(const std::string& plan_path, const std::string& events_path)
      : directory_(plan_path.substr(0, plan_path.rfind('/'))),
        events_(open(events_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
    std::ifstream file(plan_path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!google::protobuf::util::JsonStringToMessage(text, &plan_).ok()) exit(96);
  }

  int run() {
    std::istringstream words(script());
    for (std::string word; words >> word;) act(word);
    return 0;
  }

 private:
  std::string script() const {
    const std::string path = plan_.spec().data().train_size() > 0 ? plan_.spec().data().train(0) : "";
    if (path.size() < 7 || path.compare(path.size() - 7, 7, ".script") != 0) {
      const std::string& prompt = plan_.spec().sample().prompt();
      return prompt.empty() ? plan_.spec().name() : prompt;
    }
    for (const std::string& name : {path + "." + std::to_string(plan_.rank()), path}) {
      std::ifstream file(name);
      if (file) return {std::istreambuf_iterator<char>(file), {}};
    }
    return "exit:93";
  }

  void emit(RankEvent event) {
    *event.mutable_time() = google::protobuf::util::TimeUtil::GetCurrentTime();
    std::string line;
    google::protobuf::util::MessageToJsonString(event, &line).ok();
    line += '\n';
    if (write(events_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) exit(97);
  }

  void step() {
    RankEvent event;
    auto* report = event.mutable_step();
    report->set_step(++step_);
    report->set_loss(5.0 / static_cast<double>(step_));
    report->set_grad_norm(1);
    report->set_seconds(0.002);
    report->set_tokens(1000);
    auto* phase = report->add_phases();
    phase->set_phase("forward_backward");
    phase->set_seconds(0.001);
    emit(event);
  }

  void run_until_term(int pause_ms) {
    while (terminated == 0) {
      step();
      printf("step %llu\n", static_cast<unsigned long long>(step_));
      fflush(stdout);
      usleep(1000u * static_cast<unsigned>(pause_ms));
    }
    RankEvent event;
    event.mutable_finished()->set_step(step_);
    event.mutable_finished()->set_interrupted(true);
    emit(event);
    exit(10);
  }

  void start_flight() {
    auto made = telar::flight::Recorder::create(directory_ + "/" + telar::flight::kFileName, {{"world.0", {0, 1}}});
    if (!made.ok()) exit(95);
    flight_ = *std::move(made);
    flight_->set_activity(telar::flight::Activity::kTraining);
    flight_->done(flight_->begin(0, 0, 4, 1, telar::flight::State::kRunning));
    flight_->begin(0, 0, 4096, 2, telar::flight::State::kRunning);
  }

  void paced(int steps, int own_ms) {
    for (int i = 0; i < steps; ++i) {
      RankEvent event;
      auto* report = event.mutable_step();
      report->set_step(++step_);
      report->set_seconds(0.010);
      auto* phase = report->add_phases();
      phase->set_phase("peers");
      phase->set_seconds(0.008 - own_ms * 0.001);
      usleep(2000);
      emit(event);
    }
  }

  void fork_grandchild() {
    if (fork() == 0) {
      if (fork() != 0) _exit(0);
      setsid();
      std::ofstream(directory_ + "/grandchild.new") << getpid() << "\n";
      rename((directory_ + "/grandchild.new").c_str(), (directory_ + "/grandchild").c_str());
      while (true) pause();
    }
    while (access((directory_ + "/grandchild").c_str(), F_OK) != 0) usleep(1000);
  }

  void escape() {
    if (fork() == 0) {
      if (fork() != 0) _exit(0);
      setsid();
      std::ofstream(directory_ + "/escaped.new") << getpid() << "\n";
      rename((directory_ + "/escaped.new").c_str(), (directory_ + "/escaped").c_str());
      execle("/bin/sleep", "sleep", "1000", nullptr, nullptr);
      _exit(95);
    }
    while (access((directory_ + "/escaped").c_str(), F_OK) != 0) usleep(1000);
  }

  void bytes(size_t count) {
    std::string data(count, '\0');
    for (size_t i = 0; i < count; ++i) data[i] = i % 61 == 60 ? '\n' : static_cast<char>('!' + i * 7 % 89);
    fwrite(data.data(), 1, count, stdout);
    fflush(stdout);
  }

  void act(const std::string& word) {
    const size_t colon = word.find(':');
    const std::string verb = word.substr(0, colon);
    const std::string rest = colon == std::string::npos ? "" : word.substr(colon + 1);
    RankEvent event;
    if (verb == "started") {
      event.mutable_started()->set_parameters(1234);
      event.mutable_started()->set_flops_per_token(6000);
      emit(event);
    } else if (verb == "step") {
      for (int i = atoi(rest.c_str()); i > 0; --i) step();
    } else if (verb == "run") {
      run_until_term(rest.empty() ? 2 : atoi(rest.c_str()));
    } else if (verb == "pause") {
      usleep(1000u * static_cast<unsigned>(atoi(rest.c_str())));
    } else if (verb == "once") {
      if (plan_.epoch() == 1) act(rest);
    } else if (verb == "print") {
      printf("%s\n", rest.c_str());
      fflush(stdout);
    } else if (verb == "bytes") {
      bytes(static_cast<size_t>(atoll(rest.c_str())));
    } else if (verb == "lines") {
      for (int i = 1; i <= atoi(rest.c_str()); ++i) printf("line %d\n", i);
      fflush(stdout);
    } else if (verb == "hold") {
      if (open(rest.c_str(), O_RDONLY) < 0) exit(94);
    } else if (verb == "escape") {
      escape();
    } else if (verb == "environment") {
      for (char** entry = environ; *entry != nullptr; ++entry) puts(*entry);
      fflush(stdout);
    } else if (verb == "ignore_term") {
      signal(SIGTERM, SIG_IGN);
    } else if (verb == "fork") {
      fork_grandchild();
    } else if (verb == "partial") {
      if (write(events_, "{\"step\":{\"st", 12) != 12) exit(97);
    } else if (verb == "fail") {
      telar::v1::FailureClass failure = telar::v1::INTERNAL;
      telar::v1::FailureClass_Parse(rest.substr(0, rest.find(':')), &failure);
      event.mutable_failure()->set_failure_class(failure);
      event.mutable_failure()->set_message(rest.substr(rest.find(':') + 1));
      emit(event);
    } else if (verb == "finish") {
      event.mutable_finished()->set_step(step_);
      emit(event);
    } else if (verb == "flight") {
      start_flight();
    } else if (verb == "paced") {
      paced(atoi(rest.c_str()), atoi(rest.substr(rest.find(':') + 1).c_str()));
    } else if (verb == "exit") {
      exit(atoi(rest.c_str()));
    } else if (verb == "abort") {
      abort();
    } else if (verb == "hang") {
      while (true) pause();
    } else {
      fprintf(stderr, "fake_rank: unknown word %s\n", word.c_str());
      exit(98);
    }
  }

  const std::string directory_;
  const int events_;
  telar::v1::RankPlan plan_;
  uint64_t step_ = 0;
  std::unique_ptr<telar::flight::Recorder> flight_;
};

}  // namespace

int main(int argc, char** argv) {
  std::string plan, events;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--plan") plan = argv[i + 1];
    if (std::string(argv[i]) == "--events") events = argv[i + 1];
  }
  if (plan.empty() || events.empty()) return 99;
  signal(SIGTERM, [](int) { terminated = 1; });
  return FakeRank(plan, events).run();
}
