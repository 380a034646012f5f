#include "client/commands/context.h"

#include <cmath>
#include <ostream>

#include "absl/strings/numbers.h"
#include "client/output/message.h"

namespace telar::client {

void Interrupt::arm() {
  const std::lock_guard lock(mutex_);
  armed_ = true;
}

bool Interrupt::trigger() {
  const std::lock_guard lock(mutex_);
  if (!armed_ || requested_) return false;
  requested_ = true;
  changed_.notify_all();
  return true;
}

bool Interrupt::requested() const {
  const std::lock_guard lock(mutex_);
  return requested_;
}

bool Interrupt::wait_for(Milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return requested_; });
}

int64_t Context::now_seconds() const {
  return std::chrono::duration_cast<std::chrono::seconds>(clock.wall().time_since_epoch()).count();
}

bool Context::print_message(const google::protobuf::Message& message) {
  if (options.output == Output::kJson) {
    out() << to_json(message);
  } else if (options.output == Output::kYaml) {
    out() << to_yaml(message);
  } else {
    return false;
  }
  return true;
}

std::optional<Milliseconds> parse_duration(const std::string& text) {
  const size_t end = text.find_first_not_of("0123456789.");
  const std::string unit = end == std::string::npos ? "s" : text.substr(end);
  double value = 0;
  if (!absl::SimpleAtod(text.substr(0, end), &value)) return std::nullopt;
  double scale = 0;
  if (unit == "ms") scale = 1;
  if (unit == "s") scale = 1e3;
  if (unit == "m") scale = 60e3;
  if (unit == "h") scale = 3600e3;
  constexpr double kYear = 365.0 * 24 * 3600e3;
  const double milliseconds = std::round(value * scale);
  if (!(milliseconds >= 1 && milliseconds <= kYear)) return std::nullopt;
  return Milliseconds(static_cast<int64_t>(milliseconds));
}

}  // namespace telar::client
