#include "worker/tokenizer/static_trie.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "worker/tokenizer/byte_trie.h"

namespace telar::tokenizer {
namespace {

TEST(StaticTrie, FindsWhatAPlainTrieFinds) {
  std::mt19937 random(3);
  for (const int letters : {2, 5, 256}) {
    std::map<std::string, int32_t> keys;
    while (keys.size() < (letters == 2 ? 500u : 5000u)) {
      std::string key(1 + random() % 12, 0);
      for (char& byte : key) byte = static_cast<char>(random() % static_cast<unsigned>(letters));
      keys.emplace(key, static_cast<int32_t>(keys.size()));
    }
    ByteTrie plain;
    std::vector<std::pair<std::string_view, int32_t>> list;
    for (const auto& [key, value] : keys) {
      plain.insert(key, value);
      list.emplace_back(key, value);
    }
    const StaticTrie trie(list);
    for (int i = 0; i < 20'000; ++i) {
      std::string text = std::next(keys.begin(), static_cast<ptrdiff_t>(random() % keys.size()))->first;
      if (i % 2 == 0) text[random() % text.size()] = static_cast<char>(random());
      text += static_cast<char>(random());
      uint32_t node = 0, same = 0;
      for (const char byte : text) {
        node = plain.next(node, static_cast<unsigned char>(byte));
        same = trie.next(same, static_cast<unsigned char>(byte));
        ASSERT_EQ(node == 0, same == 0);
        if (node == 0) break;
        ASSERT_EQ(plain.value(node), trie.value(same));
      }
    }
  }
}

TEST(StaticTrie, NoKeysAtAll) {
  const StaticTrie none({});
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(none.next(0, static_cast<unsigned char>(byte)), 0u);
}

}  // namespace
}  // namespace telar::tokenizer
