// Reads every device once a round, and counts what happens to them.
#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "worker/probe/nvml.h"
#include "worker/probe/report.h"

namespace telar::probe {

// Used by one thread. Any method may block for as long as the driver does.
class Sampler {
 public:
  // Loads the library and begins to listen for events. Null, and `problem` says why, when the driver does not answer.
  static std::unique_ptr<Sampler> open(const std::string& library, std::string& problem);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  const Report& sample();
  // Until something happened to a device, or `longest` passed. Events are counted here.
  void wait(std::chrono::milliseconds longest);

 private:
  struct Device {
    NvmlDevice handle = nullptr;
    unsigned long long ecc_errors = 0;
    bool ecc_known = false;
    std::set<unsigned> links_up;  // Those that have been.
  };

  explicit Sampler(const std::string& library) : nvml_(library) {}
  void add_devices(unsigned count);
  void sample_device(Device& device, DeviceReading& reading) const;
  void sample_memory(const Device& device, DeviceReading& reading) const;
  void sample_errors(Device& device, DeviceReading& reading) const;
  void sample_links(Device& device, DeviceReading& reading) const;
  // Notes whether a condition holds, and counts each time that it begins to.
  static void hold(DeviceReading& reading, const std::string& code, bool holds);
  bool next_event(unsigned milliseconds);

  const Nvml nvml_;
  NvmlEventSet events_ = nullptr;
  std::vector<Device> devices_;
  Report report_;
};

}  // namespace telar::probe
