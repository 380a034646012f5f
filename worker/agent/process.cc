#include "worker/agent/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace telar::agent {
namespace {

struct Stat {
  char state = 'X';
  int parent = 0;
  int group = 0;
  int session = 0;
  int threads = 0;  // Those that are left.
  uint64_t start_ticks = 0;
};

// By read(2): a stream's iterator throws when the process ends between open and read (ESRCH). Empty on any error.
std::string slurp(const std::string& path) {
  std::string text;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char block[4096];
  for (ssize_t size = 0; (size = read(file, block, sizeof(block))) > 0;) text.append(block, static_cast<size_t>(size));
  close(file);
  return text;
}

// proc(5): pid (comm) state ppid pgrp session ... num_threads is field 20, starttime field 22. comm may hold spaces and
// parentheses.
std::optional<Stat> read_stat(const std::string& path) {
  const std::string text = slurp(path);
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end + 1));
  Stat stat;
  fields >> stat.state >> stat.parent >> stat.group >> stat.session;
  std::string skipped;
  for (int field = 7; field < 20; ++field) fields >> skipped;
  fields >> stat.threads >> skipped >> stat.start_ticks;
  if (!fields) return std::nullopt;
  return stat;
}

std::optional<Stat> read_stat(int pid) { return read_stat("/proc/" + std::to_string(pid) + "/stat"); }

// A process shows as a zombie once its first thread has ended, though others still run, or are long in dying, as one
// that a driver tears a GPU down for. Until the last is gone it may hold its device, and its parent knows no exit code.
bool dead(const Stat& stat) { return stat.state == 'X' || (stat.state == 'Z' && stat.threads <= 1); }

bool carries(int pid, const std::string& marker) {
  const std::string environment = '\0' + slurp("/proc/" + std::to_string(pid) + "/environ");
  return environment.find('\0' + marker + '\0') != std::string::npos;
}

std::vector<int> pids_in(const std::string& cgroup) {
  std::vector<int> pids;
  if (cgroup.empty()) return pids;
  std::ifstream file(cgroup + "/cgroup.procs");
  for (int pid = 0; file >> pid;) pids.push_back(pid);
  return pids;
}

bool kill_has_no_effect() {
  const char* path = getenv("TELAR_FAIL_KILL");
  return path != nullptr && access(path, F_OK) == 0;
}

// The directory of this process's own cgroup v2 group; empty without one.
std::string own_cgroup() {
  std::string mount, group, line;
  for (std::ifstream file("/proc/self/mountinfo"); std::getline(file, line);) {
    const size_t dash = line.find(" - cgroup2 ");
    if (dash == std::string::npos) continue;
    std::istringstream fields(line);
    std::string skipped;
    fields >> skipped >> skipped >> skipped >> skipped >> mount;
  }
  for (std::ifstream file("/proc/self/cgroup"); std::getline(file, line);) {
    if (line.rfind("0::", 0) == 0) group = line.substr(3);
  }
  if (mount.empty() || group.empty()) return "";
  return group == "/" ? mount : mount + group;
}

}  // namespace

std::string boot_id() {
  std::string id = slurp("/proc/sys/kernel/random/boot_id");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

std::optional<ProcessId> identify(int pid) {
  const auto stat = read_stat(pid);
  if (!stat) return std::nullopt;
  return ProcessId{pid, stat->start_ticks, boot_id()};
}

char process_state(const std::string& stat_path) {
  const auto stat = read_stat(stat_path);
  return stat ? stat->state : 'X';
}

bool alive(const ProcessId& process) {
  if (process.pid <= 0) return false;
  const auto stat = read_stat(process.pid);
  return stat && !dead(*stat) && stat->start_ticks == process.start_ticks && process.boot_id == boot_id();
}

std::vector<int> members(const ProcessFamily& family) {
  std::vector<int> found;
  if (family.leader.boot_id != boot_id()) return found;
  const std::vector<int> grouped = pids_in(family.cgroup);
  DIR* directory = opendir("/proc");
  if (directory == nullptr) return found;
  while (const dirent* entry = readdir(directory)) {
    int pid = 0;
    const char* end = entry->d_name + std::char_traits<char>::length(entry->d_name);
    if (std::from_chars(entry->d_name, end, pid).ptr != end || pid <= 1) continue;
    const auto stat = read_stat(pid);
    // Nothing of the family is older than its leader: an older process has the number by another right.
    if (!stat || dead(*stat) || stat->start_ticks < family.leader.start_ticks) continue;
    const bool related = stat->group == family.leader.pid || stat->session == family.leader.pid;
    const bool listed = std::find(grouped.begin(), grouped.end(), pid) != grouped.end();
    if (related || listed || carries(pid, family.marker)) found.push_back(pid);
  }
  closedir(directory);
  return found;
}

int parent_of(int pid) {
  const auto stat = read_stat(pid);
  return stat ? stat->parent : 0;
}

bool carries_rank_marker(int pid, const std::string& state) {
  const std::string environment = '\0' + slurp("/proc/" + std::to_string(pid) + "/environ");
  return environment.find('\0' + ("TELAR_RANK_DIR=" + state + "/")) != std::string::npos;
}

void send_kill(int pid) {
  if (!kill_has_no_effect()) kill(pid, SIGKILL);
}

void signal_group(const ProcessFamily& family, int signal) {
  if (alive(family.leader)) kill(-family.leader.pid, signal);
}

std::vector<int> kill_members(const ProcessFamily& family) {
  if (!family.cgroup.empty() && !kill_has_no_effect()) {
    const int file = open((family.cgroup + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC);  // Linux 5.14.
    if (file >= 0) {
      if (write(file, "1", 1) != 1) {
      }  // The loop below does the same, one by one.
      close(file);
    }
  }
  const std::vector<int> found = members(family);
  for (int pid : found) send_kill(pid);
  return found;
}

std::string make_cgroup(const std::string& name) {
  const std::string parent = own_cgroup();
  if (parent.empty()) return "";
  const std::string path = parent + "/" + name;
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return "";
  return path;
}

bool enter_cgroup(const std::string& directory, int pid) {
  const int file = open((directory + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const std::string text = std::to_string(pid);
  const bool entered = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  return entered;
}

}  // namespace telar::agent
