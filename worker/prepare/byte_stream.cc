#include "worker/prepare/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace telar::prepare {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 18;
constexpr std::string_view kGzipMagic("\x1f\x8b", 2);
constexpr std::string_view kZstdMagic("\x28\xb5\x2f\xfd", 4);
constexpr std::string_view kParquetMagic("PAR1", 4);

// The file as it is on the disk, a block in memory.
class Disk {
 public:
  Disk(int file, std::string path) : file_(file), path_(std::move(path)), block_(kBlockBytes) {}
  ~Disk() {
    if (file_ > 0) ::close(file_);
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  const std::string& path() const { return path_; }
  std::string_view block() const { return {block_.data() + begin_, end_ - begin_}; }
  uint64_t taken() const { return taken_; }
  void take(size_t bytes) {
    begin_ += bytes;
    taken_ += bytes;
  }
  // Adds to the block until it holds `least` bytes, or all there are.
  absl::Status fill(size_t least) {
    if (block().size() >= least) return absl::OkStatus();
    std::memmove(block_.data(), block_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
    while (end_ < least) {
      const ssize_t count = ::read(file_, block_.data() + end_, block_.size() - end_);
      if (count < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, absl::StrCat("read ", path_));
      if (count == 0) break;
      if (count > 0) end_ += static_cast<size_t>(count);
    }
    return absl::OkStatus();
  }
  // False: this is no file that has places.
  bool seek(uint64_t bytes) {
    struct stat about {};
    if (::fstat(file_, &about) != 0 || !S_ISREG(about.st_mode)) return false;
    if (::lseek(file_, static_cast<off_t>(taken_ + bytes), SEEK_SET) < 0) return false;
    taken_ += bytes;
    begin_ = end_ = 0;
    return static_cast<uint64_t>(about.st_size) >= taken_;
  }

 private:
  const int file_;
  const std::string path_;
  std::vector<char> block_;
  size_t begin_ = 0, end_ = 0;
  uint64_t taken_ = 0;
};

class DiskStream : public ByteStream {
 public:
  explicit DiskStream(std::unique_ptr<Disk> disk) : disk_(std::move(disk)) {}
  uint64_t file_bytes() const override { return disk_->taken(); }
  absl::Status skip(uint64_t bytes) override {
    std::vector<char> waste(std::min<uint64_t>(bytes, kBlockBytes));
    while (bytes > 0) {
      const auto count = read(std::span(waste).first(std::min<uint64_t>(bytes, waste.size())));
      if (!count.ok()) return count.status();
      if (*count == 0) return absl::OutOfRangeError(absl::StrCat("read ", disk_->path(), ": ends ", bytes, " early"));
      bytes -= *count;
    }
    return absl::OkStatus();
  }

 protected:
  absl::Status damaged(const std::string& what) const {
    return absl::DataLossError(absl::StrCat("input file ", disk_->path(), ": ", what, " at offset ", disk_->taken()));
  }
  Disk& disk() { return *disk_; }

 private:
  const std::unique_ptr<Disk> disk_;
};

class PlainStream : public DiskStream {
 public:
  using DiskStream::DiskStream;
  absl::StatusOr<size_t> read(std::span<char> out) override {
    if (auto status = disk().fill(1); !status.ok()) return status;
    const size_t count = std::min(out.size(), disk().block().size());
    std::memcpy(out.data(), disk().block().data(), count);
    disk().take(count);
    return count;
  }
  absl::Status skip(uint64_t bytes) override { return disk().seek(bytes) ? absl::OkStatus() : DiskStream::skip(bytes); }
};

class GzipStream : public DiskStream {
 public:
  explicit GzipStream(std::unique_ptr<Disk> disk) : DiskStream(std::move(disk)) {
    constexpr int kGzipOnly = 16;
    ready_ = inflateInit2(&zip_, kGzipOnly + MAX_WBITS) == Z_OK;
  }
  ~GzipStream() override {
    if (ready_) inflateEnd(&zip_);
  }
  absl::StatusOr<size_t> read(std::span<char> out) override {
    if (!ready_) return absl::ResourceExhaustedError("no memory for zlib");
    zip_.next_out = reinterpret_cast<Bytef*>(out.data());
    zip_.avail_out = static_cast<uInt>(std::min<size_t>(out.size(), kBlockBytes));
    const uInt room = zip_.avail_out;
    while (zip_.avail_out == room) {
      if (auto status = disk().fill(1); !status.ok()) return status;
      const std::string_view block = disk().block();
      if (block.empty()) return inside_ ? absl::StatusOr<size_t>(damaged("gzip data ends too soon")) : size_t{0};
      if (!std::exchange(inside_, true) && inflateReset(&zip_) != Z_OK) return damaged("zlib failed");
      zip_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));
      zip_.avail_in = static_cast<uInt>(block.size());
      const int result = inflate(&zip_, Z_NO_FLUSH);
      disk().take(block.size() - zip_.avail_in);
      if (result == Z_STREAM_END) {
        inside_ = false;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return damaged(absl::StrCat("gzip data is damaged (", zip_.msg == nullptr ? "unknown" : zip_.msg, ")"));
      }
    }
    return room - zip_.avail_out;
  }

 private:
  z_stream zip_{};
  bool ready_ = false;
  bool inside_ = false;  // A member has begun and not ended.
};

class ZstdStream : public DiskStream {
 public:
  explicit ZstdStream(std::unique_ptr<Disk> disk) : DiskStream(std::move(disk)), zip_(ZSTD_createDStream()) {}
  ~ZstdStream() override { ZSTD_freeDStream(zip_); }
  absl::StatusOr<size_t> read(std::span<char> out) override {
    if (zip_ == nullptr) return absl::ResourceExhaustedError("no memory for Zstandard");
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    while (output.pos == 0) {
      if (auto status = disk().fill(1); !status.ok()) return status;
      const std::string_view block = disk().block();
      // Without input it may still hold output back.
      if (block.empty() && !inside_) return size_t{0};
      ZSTD_inBuffer input{block.data(), block.size(), 0};
      const size_t result = ZSTD_decompressStream(zip_, &output, &input);
      disk().take(input.pos);
      if (ZSTD_isError(result) != 0) {
        return damaged(absl::StrCat("Zstandard data is damaged (", ZSTD_getErrorName(result), ")"));
      }
      inside_ = result != 0;
      if (block.empty() && inside_ && output.pos == 0) return damaged("Zstandard data ends too soon");
    }
    return output.pos;
  }

 private:
  ZSTD_DStream* const zip_;
  bool inside_ = false;  // A frame has begun and not ended.
};

absl::Status parquet(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat("input file ", path,
                   ": Parquet is not read; write its text column as JSONL first, as docs/data.md shows for DuckDB "
                   "and pandas"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteStream>> open_stream(const std::string& path) {
  if (path.ends_with(".parquet")) return parquet(path);
  const int file = path == "-" ? 0 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("input file ", path));
  auto disk = std::make_unique<Disk>(file, path);
  struct stat about {};
  if (::fstat(file, &about) == 0 && S_ISDIR(about.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("input file ", path, ": is a directory; name its files, as in '", path, "/*.jsonl'"));
  }
  if (auto status = disk->fill(kZstdMagic.size()); !status.ok()) return status;
  const std::string_view start = disk->block();
  if (start.starts_with(kParquetMagic)) return parquet(path);
  const bool gzip = start.starts_with(kGzipMagic), zstd = start.starts_with(kZstdMagic);
  if ((path.ends_with(".gz") && !gzip) || (path.ends_with(".zst") && !zstd)) {
    return absl::DataLossError(absl::StrCat("input file ", path, ": does not begin as ",
                                            path.ends_with(".gz") ? "gzip" : "Zstandard", " data does"));
  }
  if (gzip) return std::make_unique<GzipStream>(std::move(disk));
  if (zstd) return std::make_unique<ZstdStream>(std::move(disk));
  return std::make_unique<PlainStream>(std::move(disk));
}

}  // namespace telar::prepare
