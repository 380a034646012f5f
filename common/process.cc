#include "common/process.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <systemd/sd-daemon.h>

#include <array>

#include "common/version.h"

namespace telar {

void init_logging(const std::string& program, const std::string& level) {
  auto logger = spdlog::stderr_logger_mt(program);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %n %v", spdlog::pattern_time_type::utc);
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

namespace {
sigset_t handled() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&set, signal);
  return set;
}
}  // namespace

void block_signals() {
  const sigset_t set = handled();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

int wait_for_signal() {
  const sigset_t set = handled();
  int signal = 0;
  while (sigwait(&set, &signal) != 0) {
  }
  return signal;
}

std::optional<int> wait_for_signal(std::chrono::milliseconds longest) {
  const sigset_t set = handled();
  const timespec time{longest.count() / 1000, (longest.count() % 1000) * 1'000'000};
  const int signal = sigtimedwait(&set, nullptr, &time);
  if (signal < 0) return std::nullopt;  // Time is up, or a debugger came: the caller looks around and waits again.
  return signal;
}

void notify_systemd(const std::string& state) { sd_notify(0, state.c_str()); }

std::string random_id(int characters) {
  static constexpr char kAlphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::string id;
  while (static_cast<int>(id.size()) < characters) {
    unsigned char byte = 0;
    if (getrandom(&byte, 1, 0) != 1 || byte >= 252) continue;  // 252 = 7 * 36: no bias.
    id += kAlphabet[byte % 36];
  }
  return id;
}

std::string uuid4() {
  std::array<unsigned char, 16> bytes{};
  while (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
  }
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kHex[bytes[i] >> 4];
    text += kHex[bytes[i] & 15];
  }
  return text;
}

std::string version() { return TELAR_COMMIT[0] == '\0' ? TELAR_VERSION : TELAR_VERSION "+" TELAR_COMMIT; }

}  // namespace telar
