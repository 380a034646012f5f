// A shuffle that needs no array.
#pragma once

#include <cstdint>

namespace telar::data {

// 64 bits to 64 well-mixed bits, a bijection: the finaliser of SplitMix64 (Steele, Lea, Flood, 2014).
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A bijection of [0, size) chosen by `key`: a balanced Feistel network over the next power of four, walked again while
// the result falls outside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). At most four walks are
// expected. Constant memory for any size up to 2^62.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t key) : size_(size), key_(key) {
    while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
  }
  uint64_t size() const { return size_; }
  // index < size().
  uint64_t operator()(uint64_t index) const {
    if (size_ <= 1) return index;
    do {
      index = encrypt(index);
    } while (index >= size_);
    return index;
  }

 private:
  static constexpr int kRounds = 8;

  uint64_t encrypt(uint64_t value) const {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = value >> half_bits_, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (mix(key_ ^ mix((right << 8) | round)) & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  uint64_t size_;
  uint64_t key_;
  int half_bits_ = 1;
};

}  // namespace telar::data
