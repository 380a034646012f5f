// Tensors that other people's code wrote down for a test to be compared with.
#pragma once

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/safetensors.h"

namespace telar::train::testing {

inline std::string golden_path(const std::string& file) {
  return std::string(std::getenv("TELAR_SOURCE_DIR")) + "/tests/golden/" + file;
}

// A safetensors file. Where it cannot be read, or has no such tensor, the test fails.
class TensorFile {
 public:
  explicit TensorFile(const std::string& path) {
    auto file = checkpoint::SafetensorsFile::open(checkpoint::FileSystem::posix(), path);
    EXPECT_TRUE(file.ok()) << file.status();
    if (file.ok()) file_ = *std::move(file);
  }
  template <typename T>
  std::vector<T> get(const std::string& name) const {
    const checkpoint::TensorInfo* info = file_->find(name);
    EXPECT_NE(info, nullptr) << name;
    std::vector<T> values((info->end - info->begin) / sizeof(T));
    EXPECT_TRUE(file_->read(*info, 0, std::as_writable_bytes(std::span(values))).ok());
    return values;
  }
  const std::vector<checkpoint::TensorInfo>& tensors() const { return file_->tensors(); }

 private:
  std::unique_ptr<checkpoint::SafetensorsFile> file_;
};

}  // namespace telar::train::testing
