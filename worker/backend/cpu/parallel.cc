#include "worker/backend/cpu/parallel.h"

#include <array>
#include <memory>
#include <new>

namespace telar::backend::cpu {

namespace {

constexpr std::align_val_t kAlignment{64};

struct Release {
  void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
};

struct Kept {
  std::unique_ptr<std::byte, Release> memory;
  size_t bytes = 0;
};

}  // namespace

std::byte* scratch_bytes(Scratch use, size_t bytes) {
  thread_local std::array<Kept, static_cast<size_t>(Scratch::kCount)> kept;
  Kept& buffer = kept[static_cast<size_t>(use)];
  if (buffer.bytes < bytes || buffer.memory == nullptr) {
    buffer.memory.reset();  // Not both at a time.
    buffer.memory.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
    buffer.bytes = bytes;
  }
  return buffer.memory.get();
}

}  // namespace telar::backend::cpu
