#include "worker/data/id_type.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace telar::data {
namespace {

// `use` is called with a value of the type's C++ integer.
template <typename Use>
auto with_type(IdType type, const Use& use) {
  switch (type) {
    case IdType::kU8:
      return use(uint8_t{});
    case IdType::kI8:
      return use(int8_t{});
    case IdType::kI16:
      return use(int16_t{});
    case IdType::kI32:
      return use(int32_t{});
    case IdType::kI64:
      return use(int64_t{});
    case IdType::kU16:
      break;
  }
  return use(uint16_t{});
}

template <typename T>
int64_t load(const std::byte* data, uint64_t index) {
  if constexpr (std::is_same_v<T, int8_t>) {
    const int64_t value = load<uint8_t>(data, index);
    return value < 128 ? value : value - 256;
  } else {
    T value;
    std::memcpy(&value, data + index * sizeof(T), sizeof(T));
    return static_cast<int64_t>(value);
  }
}

}  // namespace

std::optional<IdType> id_type_of(uint8_t code) {
  if ((code >= 1 && code <= 5) || code == 8) return static_cast<IdType>(code);
  return std::nullopt;
}

size_t size_of(IdType type) {
  return with_type(type, [](auto id) { return sizeof(id); });
}

size_t widen(IdType type, const std::byte* data, uint64_t first, std::span<int32_t> out, int64_t limit) {
  return with_type(type, [&](auto example) {
    using T = decltype(example);
    int64_t least = 0, greatest = 0;
    for (size_t at = 0; at < out.size(); ++at) {
      const int64_t id = load<T>(data, first + at);
      least = std::min(least, id);
      greatest = std::max(greatest, id);
      out[at] = static_cast<int32_t>(id);
    }
    if (least >= 0 && greatest < limit) return out.size();
    size_t bad = 0;
    for (; bad < out.size(); ++bad) {
      const int64_t id = load<T>(data, first + bad);
      if (id < 0 || id >= limit) break;
    }
    return bad;
  });
}

int64_t id_at(IdType type, const std::byte* data, uint64_t index) {
  return with_type(type, [&](auto example) { return load<decltype(example)>(data, index); });
}

}  // namespace telar::data
