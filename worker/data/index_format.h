// Constants of index files. The page is docs/formats/index.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace telar::data {

inline constexpr char kIndexMagic[] = "TELARIDX";
inline constexpr size_t kIndexMagicBytes = 8;
inline constexpr uint32_t kIndexVersion = 1;
// Magic, version, CRC-32C of what follows the header.
inline constexpr size_t kIndexHeaderBytes = kIndexMagicBytes + 2 * sizeof(uint32_t);
// Places of a data file that the name of its index depends on, besides its size and times.
inline constexpr uint64_t kIndexProbes = 16, kIndexProbeBytes = 4096;
// An index must be so much younger than what it is of: a file that is changed twice within one tick of the file
// system's clock has the same times.
inline constexpr int64_t kIndexRaceNanoseconds = 2'000'000'000;

}  // namespace telar::data
