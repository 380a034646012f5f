// The integers that files keep token ids in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace telar::data {

// The values are Megatron's codes; its 6 and 7 are floating point, which no id is.
enum class IdType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

std::optional<IdType> id_type_of(uint8_t code);
size_t size_of(IdType type);

// Widens the ids [first, first + out.size()) of the little-endian, maybe unaligned array `data`. Returns the index in
// `out` of the first one that is not in [0, limit), else out.size(). `limit` is at most 2^31.
size_t widen(IdType type, const std::byte* data, uint64_t first, std::span<int32_t> out, int64_t limit);

// One id as the file has it, negative or not.
int64_t id_at(IdType type, const std::byte* data, uint64_t index);

}  // namespace telar::data
