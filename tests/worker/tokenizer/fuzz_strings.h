// The strings of tests/golden/make_tokenizers.py: string i is the same there and here.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/tokenizer/unicode.h"

namespace telar::tokenizer {

class FuzzStrings {
 public:
  // splitmix64.
  class Random {
   public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
      uint64_t z = state_ += 0x9E3779B97F4A7C15u;
      z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
      z = (z ^ z >> 27) * 0x94D049BB133111EBu;
      return z ^ z >> 31;
    }
    uint64_t below(uint64_t n) { return next() % n; }
    void append_code(uint32_t low, uint32_t high, std::string& out) {
      append_utf8(low + static_cast<uint32_t>(below(high - low + 1)), out);
    }

   private:
    uint64_t state_;
  };

  // From tests/golden/tokenizers/strings.json.
  explicit FuzzStrings(const std::string& path) {
    const auto parts = nlohmann::json::parse(std::ifstream(path));
    fragments_ = parts.at("fragments").get<std::vector<std::string>>();
    spaces_ = parts.at("spaces").get<std::vector<std::string>>();
    ranges_ = parts.at("ranges").get<std::vector<std::pair<uint32_t, uint32_t>>>();
  }

  std::string at(uint64_t index) const {
    Random random(index);
    std::string out;
    const uint64_t parts = 1 + random.below(12);
    for (uint64_t i = 0; i < parts; ++i) append_part(random, out);
    return out;
  }

  // Every eighth string has a byte in it that breaks it.
  std::string with_errors(uint64_t index) const {
    std::string out = at(index);
    if (index % 8 == 7) {
      Random random(~index);
      const uint64_t place = random.below(out.size() + 1);
      out.insert(out.begin() + static_cast<std::ptrdiff_t>(place), static_cast<char>(128 + random.below(128)));
    }
    return out;
  }

 private:
  void append_part(Random& random, std::string& out) const {
    const uint64_t kind = random.below(16);
    if (kind < 4) {
      out.append(fragments_[random.below(fragments_.size())]);
    } else if (kind < 7) {
      for (uint64_t left = 1 + random.below(8); left > 0; --left) {
        const bool lower = random.below(4) != 0;
        random.append_code(lower ? 'a' : 'A', lower ? 'z' : 'Z', out);
      }
    } else if (kind == 7) {
      for (uint64_t left = 1 + random.below(8); left > 0; --left) random.append_code('0', '9', out);
    } else if (kind == 8) {
      const std::string& space = spaces_[random.below(spaces_.size())];
      for (uint64_t left = 1 + random.below(10); left > 0; --left) out.append(space);
    } else if (kind < 14) {
      const auto [low, high] = ranges_[random.below(ranges_.size())];
      if (kind == 13) {
        random.append_code(low, high, out);
        for (uint64_t left = 1 + random.below(3); left > 0; --left) random.append_code(0x300, 0x36F, out);
      } else {
        for (uint64_t left = 1 + random.below(5); left > 0; --left) random.append_code(low, high, out);
      }
    } else if (kind == 14) {
      for (uint64_t left = 1 + random.below(5); left > 0; --left) random.append_code('!', '/', out);
    } else {
      out.push_back(' ');
    }
  }

  std::vector<std::string> fragments_;
  std::vector<std::string> spaces_;
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;
};

}  // namespace telar::tokenizer
