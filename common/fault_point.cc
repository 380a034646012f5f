#include "common/fault_point.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace telar {
namespace {

struct Fault {
  std::string point, action;
  int turn = 1;  // Times to come by until it strikes.
};

class Faults {
 public:
  explicit Faults(const std::string& text) {
    const std::vector<std::string> entries = absl::StrSplit(text, ',');
    for (const std::string& entry : entries) {
      const std::vector<std::string> parts = absl::StrSplit(entry, ':');
      Fault fault;
      int delay = 0;
      const bool known = parts.size() >= 2 &&
                         (parts[1] == "kill" || parts[1] == "stop" || parts[1] == "error" || parts[1] == "enospc" ||
                          (parts[1].rfind("delay", 0) == 0 && absl::SimpleAtoi(parts[1].substr(5), &delay)));
      if (!known || parts.size() > 3 || (parts.size() == 3 && !absl::SimpleAtoi(parts[2], &fault.turn))) {
        std::fprintf(stderr, "TELAR_FAULT: '%s' is not POINT:ACTION or POINT:ACTION:N\n", entry.c_str());
        std::_Exit(99);
      }
      fault.point = parts[0];
      fault.action = parts[1];
      faults_.push_back(std::move(fault));
    }
  }

  absl::Status reach(const std::string& point) {
    std::string action;
    {
      const std::lock_guard lock(mutex_);
      for (Fault& fault : faults_) {
        if (fault.point == point && --fault.turn == 0) action = fault.action;
      }
    }
    return action.empty() || !first_of_all(point) ? absl::OkStatus() : strike(point, action);
  }

 private:
  static bool first_of_all(const std::string& point) {
    const char* directory = std::getenv("TELAR_FAULT_DIR");
    if (directory == nullptr) return true;
    const int file = open(absl::StrCat(directory, "/", point).c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0) return false;
    close(file);
    return true;
  }

  static absl::Status strike(const std::string& point, const std::string& action) {
    if (action == "kill") kill(getpid(), SIGKILL);
    if (action == "stop") kill(getpid(), SIGSTOP);
    int delay = 0;
    if (absl::SimpleAtoi(action.substr(std::min<size_t>(5, action.size())), &delay))
      usleep(1000u * static_cast<unsigned>(delay));
    if (action == "error") return absl::UnavailableError("fault point " + point);
    if (action == "enospc") return absl::ResourceExhaustedError("fault point " + point + ": No space left on device");
    return absl::OkStatus();
  }

  std::mutex mutex_;
  std::vector<Fault> faults_;
};

Faults* planned() {
  static const std::unique_ptr<Faults> kFaults = [] {
    const char* text = std::getenv("TELAR_FAULT");
    return text == nullptr || *text == '\0' ? nullptr : std::make_unique<Faults>(text);
  }();
  return kFaults.get();
}

}  // namespace

absl::Status fault_point(const char* point) {
  return planned() == nullptr ? absl::OkStatus() : planned()->reach(point);
}

absl::Status fault_point(const std::string& name, const char* when) {
  return planned() == nullptr ? absl::OkStatus() : planned()->reach(absl::StrCat(name, ".", when));
}

}  // namespace telar
