#include "worker/agent/clean_end.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/agent/devices.h"

namespace telar::agent {
namespace {

// Calls `take` with what each descriptor of the process names; false ends it.
void each_descriptor(int pid, const std::function<bool(const std::string&)>& take) {
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  DIR* directory = opendir(folder.c_str());
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory)) {
    char target[4096];
    const ssize_t size = readlink(absl::StrCat(folder, "/", entry->d_name).c_str(), target, sizeof(target));
    if (size > 0 && !take(std::string(target, static_cast<size_t>(size)))) break;
  }
  closedir(directory);
}

std::vector<int> all_pids() {
  std::vector<int> pids;
  DIR* directory = opendir("/proc");
  if (directory == nullptr) return pids;
  while (const dirent* entry = readdir(directory)) {
    int pid = 0;
    const char* end = entry->d_name + std::char_traits<char>::length(entry->d_name);
    if (std::from_chars(entry->d_name, end, pid).ptr == end && pid > 1) pids.push_back(pid);
  }
  closedir(directory);
  return pids;
}

bool holds(int pid, const std::string& file) {
  bool found = false;
  each_descriptor(pid, [&](const std::string& target) {
    found = target == file;
    return !found;
  });
  return found;
}

v1::Residue residue_of(const v1::Device& device, int pid, const std::string& what) {
  v1::Residue residue;
  *residue.mutable_device() = device;
  residue.set_pid(pid);
  residue.set_message(absl::StrCat(device_name(device), ": ", what));
  return residue;
}

v1::Residue residue_of_process(const v1::Device& device, int pid, const std::string& what) {
  const std::vector<int> ports = listening_ports(pid);
  const std::string at = ports.empty() ? "" : absl::StrCat(", and listens at port ", absl::StrJoin(ports, ", "));
  return residue_of(device, pid, absl::StrCat("pid ", pid, " ", what, at));
}

}  // namespace

std::vector<int> orphans_on(const EndFacts& facts) {
  std::vector<int> found;
  if (facts.device_file.empty()) return found;
  std::set<int> theirs = {getpid(), facts.spawner, facts.probe};
  for (const ProcessFamily& family : facts.others) {
    for (int pid : members(family)) theirs.insert(pid);
  }
  for (int pid : all_pids()) {
    if (theirs.count(pid) != 0 || !holds(pid, facts.device_file)) continue;
    if (parent_of(pid) == facts.spawner || carries_rank_marker(pid, facts.state)) found.push_back(pid);
  }
  return found;
}

std::vector<int> listening_ports(int pid) {
  std::set<std::string> sockets;  // Inodes.
  each_descriptor(pid, [&](const std::string& target) {
    if (target.rfind("socket:[", 0) == 0) sockets.insert(target.substr(8, target.size() - 9));
    return true;
  });
  std::set<int> ports;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/net/", table));
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      // proc(5): sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode; st 0A is LISTEN.
      std::istringstream fields(line);
      std::string number, local, remote, state, skipped, inode;
      fields >> number >> local >> remote >> state >> skipped >> skipped >> skipped >> skipped >> skipped >> inode;
      if (state != "0A" || sockets.count(inode) == 0) continue;
      ports.insert(static_cast<int>(std::stoul(local.substr(local.rfind(':') + 1), nullptr, 16)));
    }
  }
  return {ports.begin(), ports.end()};
}

std::vector<v1::Residue> find_residues(const EndFacts& facts) {
  std::vector<v1::Residue> left;
  std::set<int> seen;
  if (facts.family) {
    for (int pid : kill_members(*facts.family)) {
      seen.insert(pid);
      left.push_back(residue_of_process(facts.device, pid, "does not die of SIGKILL"));
    }
  }
  for (int pid : orphans_on(facts)) {
    if (!seen.insert(pid).second) continue;
    send_kill(pid);
    left.push_back(residue_of_process(facts.device, pid, absl::StrCat("holds ", facts.device_file)));
  }
  if (facts.used_before && facts.used_now && *facts.used_now > *facts.used_before + kMemorySlack) {
    const uint64_t more = (*facts.used_now - *facts.used_before) >> 20;
    left.push_back(residue_of(facts.device, 0, absl::StrCat(more, " MiB more in use than before the rank started")));
  }
  return left;
}

}  // namespace telar::agent
