// The files of tests/golden/tokenizers.
#pragma once

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace telar::tokenizer {

inline std::string golden_file(const std::string& name) {
  return std::string(std::getenv("TELAR_SOURCE_DIR")) + "/tests/golden/tokenizers/" + name;
}

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace telar::tokenizer
