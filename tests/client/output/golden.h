// Whole pages against tests/client/golden/. After a wanted change run the test with TELAR_UPDATE_GOLDEN=1 and review
// the difference.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "google/protobuf/text_format.h"

namespace telar::client {

inline std::string golden_path(const std::string& name) {
  const char* root = std::getenv("TELAR_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/tests/client/golden/" + name;
}

inline void expect_golden(const std::string& name, const std::string& actual) {
  const std::string path = golden_path(name);
  if (std::getenv("TELAR_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << actual;
  std::ostringstream expected;
  expected << std::ifstream(path).rdbuf();
  EXPECT_EQ(actual, expected.str()) << path;
}

template <typename Message>
Message parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

}  // namespace telar::client
