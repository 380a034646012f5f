// The bytes of one fuzz run, taken from the front; and files made of them.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace telar::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  bool empty() const { return rest_.empty(); }
  uint8_t byte() { return rest_.empty() ? 0 : static_cast<uint8_t>(take(1)[0]); }
  uint16_t half() {
    const uint8_t low = byte();
    return static_cast<uint16_t>(low | byte() << 8);
  }
  std::string_view take(size_t count) {
    const std::string_view front = rest_.substr(0, count);
    rest_.remove_prefix(front.size());
    return front;
  }
  std::string_view rest() { return take(rest_.size()); }

 private:
  std::string_view rest_;
};

// A property that does not hold: the fuzzer keeps what led here, a replay fails.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// A file without a name; path() opens it again.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : file_(memfd_create("fuzz", MFD_CLOEXEC)) {
    require(file_ >= 0 && write(file_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "memfd");
  }
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  const int file_;
};

// A folder in memory for the whole process, emptied at its end.
class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::exists("/dev/shm") ? "/dev/shm/telar-fuzz-XXXXXX" : "/tmp/telar-fuzz-XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path(const std::string& name) const { return root_ + "/" + name; }
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::string root_;
};

}  // namespace telar::fuzz
