// Packed files for tests.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <string>

#include <gtest/gtest.h>

namespace telar::prepare {

inline std::string gzip(const std::string& bytes) {
  z_stream zip{};
  EXPECT_EQ(deflateInit2(&zip, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&zip, bytes.size()) + 64, '\0');
  zip.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  zip.avail_in = static_cast<uInt>(bytes.size());
  zip.next_out = reinterpret_cast<Bytef*>(packed.data());
  zip.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&zip, Z_FINISH), Z_STREAM_END);
  packed.resize(zip.total_out);
  deflateEnd(&zip);
  return packed;
}

inline std::string zstd(const std::string& bytes) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size = ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), 3);
  EXPECT_EQ(ZSTD_isError(size), 0u);
  packed.resize(size);
  return packed;
}

}  // namespace telar::prepare
