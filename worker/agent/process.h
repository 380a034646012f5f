// Facts about processes from /proc, and ending all that belongs to one rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace telar::agent {

// Names one process for ever: a pid alone is used again.
struct ProcessId {
  int pid = 0;
  uint64_t start_ticks = 0;  // Since boot, from /proc/<pid>/stat.
  std::string boot_id;
};

// Of a process that exists now, zombies included; nullopt when there is none.
std::optional<ProcessId> identify(int pid);
std::string boot_id();

// The letter of proc(5) in a stat file, of a process or of one thread; 'X' when there is none.
char process_state(const std::string& stat_path);

// False for a zombie without threads: it computes nothing and holds no device.
bool alive(const ProcessId& process);

// What belongs to a rank: its process group and session, whatever inherited its environment's marker, and its cgroup.
// A grandchild that made a session of its own is found by the marker or the cgroup.
struct ProcessFamily {
  ProcessId leader;
  std::string marker;  // "NAME=value", as it stands in the environment of the rank.
  std::string cgroup;  // Directory; empty without one.
};

// Living members, the leader too.
std::vector<int> members(const ProcessFamily& family);
// Signals the process group of a living leader. Does nothing when the leader is gone.
void signal_group(const ProcessFamily& family, int signal);
// SIGKILL to every member. Returns those that were there: call again until it returns none.
std::vector<int> kill_members(const ProcessFamily& family);

int parent_of(int pid);  // 0 when there is no such process.
// Its environment says that it belongs to some rank below that state directory.
bool carries_rank_marker(int pid, const std::string& state);
// SIGKILL to one process. For tests: while the file that TELAR_FAIL_KILL names exists no SIGKILL of ours has an effect.
void send_kill(int pid);

// A new cgroup below this process's own one; empty when the system gives none (no cgroup v2, not delegated).
std::string make_cgroup(const std::string& name);
bool enter_cgroup(const std::string& directory, int pid);

}  // namespace telar::agent
