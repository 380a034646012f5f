// NVIDIA's management library, found at run time: it comes with the driver, not with us. The part of its C interface
// that is in use, as nvml.h of the driver declares it.
//
// Any call may block for ever when the driver is in trouble.
#pragma once

#include <dlfcn.h>

#include <string>

namespace telar::probe {

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// nvmlReturn_t
inline constexpr int kNvmlSuccess = 0;
inline constexpr int kNvmlTimeout = 10;
inline constexpr int kNvmlGpuIsLost = 15;
inline constexpr int kNvmlNoFunction = -1;  // Ours: the library has no such function.

inline constexpr unsigned kNvmlNameSize = 96;
inline constexpr unsigned kNvmlMostLinks = 18;
inline constexpr unsigned long long kNvmlEventXid = 0x8;
inline constexpr int kNvmlUncorrected = 1;    // nvmlMemoryErrorType_t
inline constexpr int kNvmlSinceTheReset = 0;  // nvmlEccCounterType_t: volatile.

using NvmlDevice = void*;
using NvmlEventSet = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct NvmlEvent {
  NvmlDevice device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

class Nvml {
 public:
  explicit Nvml(const std::string& path = kNvmlLibrary) : library_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  ~Nvml() {
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool loaded() const { return library_ != nullptr; }
  // The arguments must have the types of the C function.
  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    auto* function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    return function == nullptr ? kNvmlNoFunction : function(arguments...);
  }

 private:
  void* library_;
};

}  // namespace telar::probe
