// A file system under which each operation that changes something is counted, and may go wrong.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "worker/checkpoint/file_system.h"

namespace telar::fakes {

class StruckFiles : public checkpoint::FileSystem {
 public:
  // Called before operation number `number` (from 0), which is `what` ("fsync /a/b"): an error is what becomes of it.
  using Strike = std::function<absl::Status(int64_t number, const std::string& what)>;
  StruckFiles(checkpoint::FileSystem& files, Strike strike) : files_(files), strike_(std::move(strike)) {}
  int64_t operations() const { return operations_; }

  absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> create(const std::string& path) override {
    if (auto status = strike("create " + path); !status.ok()) return status;
    auto file = files_.create(path);
    if (!file.ok()) return file;
    return std::make_unique<Writable>(*this, *std::move(file), path);
  }
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> open(const std::string& path) override {
    return files_.open(path);
  }
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override { return files_.list(path); }
  absl::Status make_directory(const std::string& path) override {
    const absl::Status status = strike("mkdir " + path);
    return status.ok() ? files_.make_directory(path) : status;
  }
  absl::Status sync_directory(const std::string& path) override {
    const absl::Status status = strike("fsync " + path);
    return status.ok() ? files_.sync_directory(path) : status;
  }
  absl::Status rename(const std::string& from, const std::string& to) override {
    const absl::Status status = strike("rename " + from);
    return status.ok() ? files_.rename(from, to) : status;
  }
  absl::Status remove_file(const std::string& path) override {
    const absl::Status status = strike("unlink " + path);
    return status.ok() ? files_.remove_file(path) : status;
  }
  absl::Status remove_directory(const std::string& path) override {
    const absl::Status status = strike("rmdir " + path);
    return status.ok() ? files_.remove_directory(path) : status;
  }
  void await_change(const std::string& path, std::chrono::milliseconds most) override {
    files_.await_change(path, most);
  }
  std::chrono::steady_clock::time_point now() override { return files_.now(); }

 private:
  class Writable : public checkpoint::WritableFile {
   public:
    Writable(StruckFiles& files, std::unique_ptr<checkpoint::WritableFile> inner, std::string path)
        : files_(files), inner_(std::move(inner)), path_(std::move(path)) {}
    // In two halves, each an operation: so there is a moment at which half of it is written.
    absl::Status append(std::span<const std::byte> bytes) override {
      const size_t half = bytes.size() / 2;
      for (const auto part : {bytes.first(half), bytes.subspan(half)}) {
        absl::Status status = files_.strike("write " + path_);
        if (status.ok()) status = inner_->append(part);
        if (!status.ok()) return status;
      }
      return absl::OkStatus();
    }
    absl::Status sync() override {
      const absl::Status status = files_.strike("fsync " + path_);
      return status.ok() ? inner_->sync() : status;
    }
    absl::Status close() override {
      const absl::Status status = files_.strike("close " + path_);
      return status.ok() ? inner_->close() : status;
    }

   private:
    StruckFiles& files_;
    const std::unique_ptr<checkpoint::WritableFile> inner_;
    const std::string path_;
  };
  absl::Status strike(const std::string& what) { return strike_(operations_++, what); }

  checkpoint::FileSystem& files_;
  const Strike strike_;
  std::atomic<int64_t> operations_{0};
};

}  // namespace telar::fakes
