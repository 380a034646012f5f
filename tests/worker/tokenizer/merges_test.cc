#include "worker/tokenizer/merges.h"

#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/tokenizer/word_cache.h"

namespace telar::tokenizer {
namespace {

using testing::ElementsAreArray;
using testing::SizeIs;

struct Table {
  int32_t byte_ids[256];
  std::map<std::pair<int32_t, int32_t>, Merges::Merge> pairs;
  Merges merges{0};

  Table() {
    for (int32_t byte = 0; byte < 256; ++byte) byte_ids[byte] = byte;
  }
  void add(int32_t left, int32_t right, Merges::Merge merge) {
    pairs[{left, right}] = merge;
    merges.add(left, right, merge);
  }
  std::vector<int32_t> encode(const std::string& word) const {
    Merges::Scratch scratch;
    std::vector<int32_t> ids;
    merges.encode(word, byte_ids, scratch, ids);
    return ids;
  }
  // The definition, word for word.
  std::vector<int32_t> plain(const std::string& word) const {
    std::vector<int32_t> ids;
    for (const char byte : word) ids.push_back(static_cast<unsigned char>(byte));
    for (;;) {
      size_t best = ids.size();
      uint32_t least = Merges::kNoRank;
      for (size_t at = 0; at + 1 < ids.size(); ++at) {
        const auto found = pairs.find({ids[at], ids[at + 1]});
        if (found != pairs.end() && found->second.rank < least) {
          least = found->second.rank;
          best = at;
        }
      }
      if (best == ids.size()) return ids;
      ids[best] = pairs.at({ids[best], ids[best + 1]}).id;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }
};

TEST(Merges, AreThoseOfTheDefinition) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    Table table;
    std::vector<int32_t> known = {'a', 'b', 'c'};
    for (int32_t id = 256; id < 300; ++id) {
      const uint32_t rank = static_cast<uint32_t>(random() % 40);  // Ranks that several pairs have, too.
      table.add(known[random() % known.size()], known[random() % known.size()], {rank, id});
      known.push_back(id);
    }
    for (int turn = 0; turn < 20; ++turn) {
      std::string word;
      for (uint64_t left = 1 + random() % 150; left > 0; --left) word.push_back(static_cast<char>('a' + random() % 4));
      ASSERT_THAT(table.encode(word), ElementsAreArray(table.plain(word))) << "seed " << seed << ", word " << word;
    }
  }
}

TEST(Merges, LongWordsTakeNoQuadraticTime) {
  Table table;
  int32_t last = 'a';
  for (int32_t id = 256; id < 262; last = id++) table.add(last, last, {static_cast<uint32_t>(id), id});
  EXPECT_THAT(table.encode(std::string(1 << 20, 'a')), SizeIs((1 << 20) / 64));
}

TEST(WordCache, TellsWordsApart) {
  WordCache cache;
  std::mt19937_64 random(1);
  std::map<std::string, int32_t> words;
  for (int32_t id = 0; id < 200'000; ++id) {
    std::string word;  // With zeros, and of all lengths: what keys might confuse.
    for (uint64_t left = 1 + random() % WordCache::kMostBytes; left > 0; --left) {
      word.push_back(static_cast<char>(random() % 2));
    }
    const int32_t expected = words.emplace(word, id).first->second;
    const WordCache::Key key(word);
    std::vector<int32_t> ids;
    if (cache.find(key, key.place(), ids)) {
      ASSERT_THAT(ids, ElementsAreArray({expected}));
    } else {
      cache.put(key, key.place(), std::vector<int32_t>{expected});
      ASSERT_TRUE(cache.find(key, key.place(), ids));
      ASSERT_THAT(ids, ElementsAreArray({expected}));
    }
  }
}

}  // namespace
}  // namespace telar::tokenizer
