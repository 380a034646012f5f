// The header of an llm.c token shard; the page is docs/formats/shards.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace telar::data {

inline constexpr size_t kLlmcHeaderBytes = 1024;  // 256 little-endian 32-bit words.
inline constexpr size_t kLlmcMagicWord = 0;
inline constexpr size_t kLlmcVersionWord = 1;
inline constexpr size_t kLlmcTokensWord = 2;

inline constexpr uint32_t kLlmcMagicU16 = 20240520;
inline constexpr uint32_t kLlmcVersionU16 = 1;
inline constexpr uint32_t kLlmcMagicU32 = 20240801;
inline constexpr uint32_t kLlmcVersionU32 = 7;

}  // namespace telar::data
