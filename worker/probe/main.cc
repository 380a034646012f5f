// telar-probe: asks the driver how the devices are, in a process of its own, for the driver may never answer.
//
//   telar-probe --socket NAME --library FILE --interval MS
// Started by telar-worker (worker/agent/probe.h), to whose abstract socket it sends a Report a round. It ends when that
// closes, and by SIGKILL when it is late.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "worker/probe/sampler.h"

namespace {

using telar::probe::Sampler;

struct Arguments {
  std::string socket, library = telar::probe::kNvmlLibrary;
  int interval = 1000;
};

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--socket") {
      arguments.socket = argv[i + 1];
    } else if (name == "--library") {
      arguments.library = argv[i + 1];
    } else if (name == "--interval") {
      arguments.interval = atoi(argv[i + 1]);
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && !arguments.socket.empty() && arguments.interval > 0;
}

int dial(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.sun_path)) return -1;
  memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  return connect(connection, reinterpret_cast<const sockaddr*>(&address), size) == 0 ? connection : -1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    fprintf(stderr, "usage: telar-probe --socket NAME [--library FILE] [--interval MS]; started by telar-worker\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  const int daemon = dial(arguments.socket);
  if (daemon < 0) {
    fprintf(stderr, "telar-probe: nobody listens at %s\n", arguments.socket.c_str());
    return 3;
  }
  std::string problem;
  const auto sampler = Sampler::open(arguments.library, problem);
  if (sampler == nullptr) {
    fprintf(stderr, "telar-probe: %s\n", problem.c_str());
    return 4;
  }
  for (;;) {
    const std::string text = to_text(sampler->sample());
    if (send(daemon, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) return 0;
    sampler->wait(std::chrono::milliseconds(arguments.interval));
  }
}
