// Words that were encoded lately, with their ids.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace telar::tokenizer {

// A place holds two words, the last ones that were put there. For one thread at a time. 4 MiB.
class WordCache {
 public:
  static constexpr size_t kMostBytes = 24;
  static constexpr size_t kMostIds = 9;

  // A word as three numbers; words of one length have the same only if they are the same.
  class Key {
   public:
    // `word` has 1 to kMostBytes bytes.
    explicit Key(std::string_view word) : size_(static_cast<uint8_t>(word.size())) {
      const char* data = word.data();
      const size_t size = word.size();
      if (size >= 8) {
        first_ = load<uint64_t>(data);
        last_ = load<uint64_t>(data + size - 8);
        if (size > 16) middle_ = load<uint64_t>(data + 8);
      } else if (size >= 4) {
        first_ = load<uint32_t>(data) | uint64_t{load<uint32_t>(data + size - 4)} << 32;
      } else {
        first_ = static_cast<unsigned char>(data[0]) | uint64_t{static_cast<unsigned char>(data[size / 2])} << 8 |
                 uint64_t{static_cast<unsigned char>(data[size - 1])} << 16;
      }
    }
    size_t place() const {
      uint64_t mixed = (first_ ^ size_) * 0x9E3779B97F4A7C15u;
      mixed = (mixed ^ mixed >> 32 ^ last_) * 0xD6E8FEB86659FD93u;
      if (size_ > 16) mixed = (mixed ^ mixed >> 32 ^ middle_) * 0xA0761D6478BD642Fu;
      return mixed >> (64 - kBits);
    }

   private:
    template <typename T>
    static T load(const char* data) {
      T value;
      std::memcpy(&value, data, sizeof(value));
      return value;
    }
    friend class WordCache;
    uint64_t first_ = 0;
    uint64_t middle_ = 0;
    uint64_t last_ = 0;
    uint8_t size_;
  };

  WordCache() : places_(size_t{1} << kBits) {}

  // Appends the word's ids; false if it is not there.
  bool find(const Key& key, size_t place, std::vector<int32_t>& ids) const {
    for (const Entry& entry : places_[place]) {
      if (entry.first != key.first_ || entry.last != key.last_ || entry.middle != key.middle_ ||
          entry.size != key.size_) {
        continue;
      }
      ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
      return true;
    }
    return false;
  }
  // A word that is not there.
  void put(const Key& key, size_t place, std::span<const int32_t> ids) {
    if (ids.size() > kMostIds) return;
    places_[place][1] = places_[place][0];
    Entry& entry = places_[place][0];
    entry.first = key.first_;
    entry.middle = key.middle_;
    entry.last = key.last_;
    entry.size = key.size_;
    entry.count = static_cast<uint8_t>(ids.size());
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr int kBits = 15;
  struct alignas(64) Entry {
    uint64_t first;
    uint64_t middle;
    uint64_t last;
    uint8_t size;  // 0: of no word.
    uint8_t count;
    std::array<int32_t, kMostIds> ids;
  };

  std::vector<std::array<Entry, 2>> places_;
};

}  // namespace telar::tokenizer
