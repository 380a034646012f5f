// The layout of Megatron-LM's NAME.idx, which stands beside NAME.bin; the page is docs/formats/shards.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace telar::data {

// Magic, version (u64), type of an id (u8), sequences S (u64), bounds D (u64); then S lengths (i32), S byte positions
// in the .bin (i64), D document bounds (i64), and maybe S modes (i8). Little-endian; nothing behind the header is
// aligned.
inline constexpr char kMegatronMagic[] = "MMIDIDX\0";  // Nine bytes, with the zero that ends the literal.
inline constexpr size_t kMegatronMagicBytes = 9;
inline constexpr size_t kMegatronVersionAt = 9;
inline constexpr size_t kMegatronTypeAt = 17;
inline constexpr size_t kMegatronSequencesAt = 18;
inline constexpr size_t kMegatronBoundsAt = 26;
inline constexpr size_t kMegatronHeaderBytes = 34;
inline constexpr uint64_t kMegatronVersion = 1;

static_assert(sizeof(kMegatronMagic) == kMegatronMagicBytes);

}  // namespace telar::data
