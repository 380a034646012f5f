// libfake_nvml.so: as much of NVML as telar-probe uses, playing what a file says. Loaded by the same dlopen as the real
// one. The file, named by TELAR_FAKE_NVML, is read at every call; a line each:
//   devices N         used I BYTES        ecc I N           link I L 0|1
//   lost I            remap I PENDING FAILED                pid I PID
//   xid I N           an event; those in the file when the library is initialised are past
//   block             every call waits for ever
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/probe/nvml.h"

namespace {

using telar::probe::kNvmlGpuIsLost;
using telar::probe::kNvmlSuccess;
using telar::probe::kNvmlTimeout;
using telar::probe::NvmlDevice;
using telar::probe::NvmlEvent;
using telar::probe::NvmlEventSet;
using telar::probe::NvmlMemory;
using telar::probe::NvmlProcess;
constexpr int kNotSupported = 3;

struct Script {
  unsigned devices = 0;
  std::map<unsigned, unsigned long long> used, ecc;
  std::map<unsigned, std::map<unsigned, int>> links;
  std::map<unsigned, std::pair<unsigned, unsigned>> remaps;
  std::map<unsigned, std::vector<unsigned>> pids;
  std::set<unsigned> lost;
  std::vector<std::pair<unsigned, unsigned>> xids;
};

size_t xids_given = 0;

Script read_script() {
  Script script;
  const char* path = getenv("TELAR_FAKE_NVML");
  std::ifstream file(path == nullptr ? "" : path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what;
    unsigned device = 0, a = 0, b = 0;
    words >> what >> device;
    if (what == "block") {
      for (;;) pause();
    } else if (what == "devices") {
      script.devices = device;
    } else if (what == "used") {
      words >> script.used[device];
    } else if (what == "ecc") {
      words >> script.ecc[device];
    } else if (what == "link") {
      words >> a >> b;
      script.links[device][a] = static_cast<int>(b);
    } else if (what == "lost") {
      script.lost.insert(device);
    } else if (what == "remap") {
      words >> a >> b;
      script.remaps[device] = {a, b};
    } else if (what == "pid") {
      words >> a;
      script.pids[device].push_back(a);
    } else if (what == "xid") {
      words >> a;
      script.xids.push_back({device, a});
    }
  }
  return script;
}

NvmlDevice handle_of(unsigned index) { return reinterpret_cast<NvmlDevice>(static_cast<uintptr_t>(index) + 1); }
unsigned index_of(NvmlDevice device) { return static_cast<unsigned>(reinterpret_cast<uintptr_t>(device) - 1); }

}  // namespace

extern "C" {

int nvmlInit_v2() {
  xids_given = read_script().xids.size();
  return kNvmlSuccess;
}
int nvmlShutdown() { return kNvmlSuccess; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = read_script().devices;
  return kNvmlSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, NvmlDevice* device) {
  *device = handle_of(index);
  return kNvmlSuccess;
}
int nvmlDeviceGetIndex(NvmlDevice device, unsigned* index) {
  *index = index_of(device);
  return kNvmlSuccess;
}

int nvmlDeviceGetMemoryInfo(NvmlDevice device, NvmlMemory* memory) {
  const Script script = read_script();
  if (script.lost.count(index_of(device)) != 0) return kNvmlGpuIsLost;
  const auto used = script.used.find(index_of(device));
  *memory = {80ULL << 30, 0, used == script.used.end() ? 0 : used->second};
  memory->free = memory->total - memory->used;
  return kNvmlSuccess;
}

int nvmlDeviceGetComputeRunningProcesses_v3(NvmlDevice device, unsigned* count, NvmlProcess* processes) {
  Script script = read_script();
  const std::vector<unsigned>& pids = script.pids[index_of(device)];
  *count = static_cast<unsigned>(pids.size());
  for (size_t i = 0; i < pids.size(); ++i) processes[i] = {pids[i], 0, 0, 0};
  return kNvmlSuccess;
}

int nvmlDeviceGetTotalEccErrors(NvmlDevice device, int, int, unsigned long long* errors) {
  *errors = read_script().ecc[index_of(device)];
  return kNvmlSuccess;
}

int nvmlDeviceGetNvLinkState(NvmlDevice device, unsigned link, int* up) {
  const Script script = read_script();
  const auto links = script.links.find(index_of(device));
  if (links == script.links.end() || links->second.count(link) == 0) return kNotSupported;
  *up = links->second.at(link);
  return kNvmlSuccess;
}

int nvmlDeviceGetRemappedRows(NvmlDevice device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = *uncorrected = 0;
  std::tie(*pending, *failed) = read_script().remaps[index_of(device)];
  return kNvmlSuccess;
}

int nvmlEventSetCreate(NvmlEventSet* set) {
  *set = &xids_given;
  return kNvmlSuccess;
}
int nvmlEventSetFree(NvmlEventSet) { return kNvmlSuccess; }
int nvmlDeviceRegisterEvents(NvmlDevice, unsigned long long, NvmlEventSet) { return kNvmlSuccess; }

int nvmlEventSetWait_v2(NvmlEventSet, NvmlEvent* event, unsigned milliseconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  for (;;) {
    const Script script = read_script();
    if (xids_given < script.xids.size()) {
      const auto& [device, xid] = script.xids[xids_given++];
      *event = {handle_of(device), telar::probe::kNvmlEventXid, xid, 0, 0};
      return kNvmlSuccess;
    }
    if (std::chrono::steady_clock::now() >= end) return kNvmlTimeout;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // extern "C"
