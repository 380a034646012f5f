#include "worker/data/split.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/data/fake_source.h"

namespace telar::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(HoldOut, TakesTheTailAndAtLeastOneWindow) {
  const auto tenth = hold_out_tail(1000, 0.1, 8).value();
  EXPECT_THAT(tenth.train, ElementsAre(TokenRange{0, 900}));
  EXPECT_THAT(tenth.eval, ElementsAre(TokenRange{900, 100}));
  const auto least = hold_out_tail(1000, 0.0001, 8).value();
  EXPECT_THAT(least.train, ElementsAre(TokenRange{0, 991}));
  EXPECT_THAT(least.eval, ElementsAre(TokenRange{991, 9}));
  EXPECT_TRUE(hold_out_tail(18, 0.02, 8).ok());
  EXPECT_THAT(std::string(hold_out_tail(17, 0.02, 8).status().message()),
              AllOf(HasSubstr("17 tokens"), HasSubstr("at least 18")));
  EXPECT_FALSE(hold_out_tail(0, 0.02, 8).ok());
  EXPECT_FALSE(hold_out_tail(1000, 0.999, 8).ok());  // Nothing left to train on.
  for (const double fraction : {0.0, 1.0, -0.5, std::nan("")}) EXPECT_FALSE(hold_out_tail(1000, fraction, 8).ok());
}
constexpr int32_t kEnd = 999;

using Text = std::vector<int32_t>;

// Documents of random tokens below kEnd, without an end-of-document token.
std::vector<Text> random_documents(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Text> documents(count);
  for (Text& document : documents) {
    document.resize(1 + random() % 12);
    for (int32_t& token : document) token = static_cast<int32_t>(random() % kEnd);
  }
  return documents;
}

struct Corpus {
  ListSource source;
  FakeDocuments documents;
};
// end: 0 no token between documents, 1 one behind each, -1 one in front of each.
Corpus corpus_of(const std::vector<Text>& documents, int end) {
  Text tokens;
  std::vector<uint64_t> ends;
  for (const Text& document : documents) {
    if (end < 0) tokens.push_back(kEnd);
    tokens.insert(tokens.end(), document.begin(), document.end());
    if (end > 0) tokens.push_back(kEnd);
    ends.push_back(tokens.size());
  }
  return {ListSource(tokens), FakeDocuments(ends)};
}

// The texts of the documents that lie in `ranges`.
std::multiset<Text> texts(const Corpus& corpus, const std::vector<TokenRange>& ranges) {
  std::multiset<Text> found;
  const Section section(corpus.source, &corpus.documents, ranges);
  for (uint64_t i = 0; i < section.document_count(); ++i) {
    const TokenRange range = section.document(i);
    Text text(range.count);
    EXPECT_TRUE(section.read(range.first, text).ok());
    std::erase(text, kEnd);
    found.insert(text);
  }
  return found;
}

TEST(HoldOutDocuments, TakesTheSameOnesInAnyCompany) {
  const std::vector<Text> documents = random_documents(4000, 1);
  const Corpus corpus = corpus_of(documents, 1);
  const Split split = hold_out_documents(corpus.source, corpus.documents, 0.1, kEnd).value();
  const auto held_out = texts(corpus, split.eval), trained_on = texts(corpus, split.train);
  EXPECT_NEAR(static_cast<double>(held_out.size()), 400, 5 * std::sqrt(4000 * 0.1 * 0.9));
  EXPECT_EQ(held_out.size() + trained_on.size(), documents.size());
  for (const Text& text : held_out) EXPECT_FALSE(trained_on.contains(text));

  std::vector<Text> shuffled = documents;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(2));
  const std::vector<Text> more = random_documents(3000, 3);
  shuffled.insert(shuffled.begin() + 1234, more.begin(), more.end());
  for (const int end : {-1, 0, 1}) {
    const Corpus other = corpus_of(shuffled, end);
    const Split other_split = hold_out_documents(other.source, other.documents, 0.1, kEnd).value();
    const auto other_held_out = texts(other, other_split.eval);
    for (const Text& text : documents) EXPECT_EQ(other_held_out.contains(text), held_out.contains(text));
  }
}

TEST(HoldOutDocuments, AGreaterFractionHoldsTheSameOnesOutAndMore) {
  const Corpus corpus = corpus_of(random_documents(2000, 4), 1);
  std::multiset<Text> before;
  for (const double fraction : {0.01, 0.1, 0.3, 0.9}) {
    const auto now = texts(corpus, hold_out_documents(corpus.source, corpus.documents, fraction, kEnd).value().eval);
    EXPECT_NEAR(static_cast<double>(now.size()) / 2000, fraction, 5 * std::sqrt(fraction * (1 - fraction) / 2000));
    EXPECT_TRUE(std::includes(now.begin(), now.end(), before.begin(), before.end()));
    before = now;
  }
}

TEST(HoldOutDocuments, CoversTheSourceInRangesThatDoNotTouch) {
  const Corpus corpus = corpus_of(random_documents(500, 5), 1);
  const Split split = hold_out_documents(corpus.source, corpus.documents, 0.4, kEnd).value();
  std::vector<TokenRange> all = split.train;
  all.insert(all.end(), split.eval.begin(), split.eval.end());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  uint64_t end = 0;
  for (const TokenRange& range : all) {
    EXPECT_EQ(range.first, end);
    end += range.count;
  }
  EXPECT_EQ(end, corpus.source.size());
  for (size_t i = 1; i < split.eval.size(); ++i) {
    EXPECT_GT(split.eval[i].first, split.eval[i - 1].first + split.eval[i - 1].count);
  }
}

// Beyond one block of reading.
TEST(HoldOutDocuments, ReadsLongDocuments) {
  std::vector<Text> documents = random_documents(300, 6);
  for (size_t i = 0; i < 4; ++i) documents[50 * i + 7].assign((1u << 18) + i, static_cast<int32_t>(i));
  const Corpus corpus = corpus_of(documents, 1);
  const auto held_out = texts(corpus, hold_out_documents(corpus.source, corpus.documents, 0.5, kEnd).value().eval);
  for (const Text& text : documents) {
    const Corpus alone = corpus_of({text, text}, 1);
    const auto split = hold_out_documents(alone.source, alone.documents, 0.5, kEnd);
    EXPECT_THAT(std::string(split.status().message()),
                HasSubstr(held_out.contains(text) ? "holds all of them out" : "holds none of them out"));
  }
}

TEST(HoldOutDocuments, RefusesByName) {
  const Corpus corpus = corpus_of({{1, 2}, {3}}, 1);
  EXPECT_THAT(std::string(hold_out_documents(corpus.source, corpus.documents, 1e-9, kEnd).status().message()),
              AllOf(HasSubstr("2 documents"), HasSubstr("holds none")));
  for (const double fraction : {0.0, 1.0, std::nan("")}) {
    EXPECT_FALSE(hold_out_documents(corpus.source, corpus.documents, fraction, kEnd).ok());
  }
}

TEST(Section, IsItsRangesOneBehindTheOther) {
  const CountingSource source(100);
  const FakeDocuments documents({10, 10, 25, 40, 41, 90, 100});
  const Section section(source, &documents, {{3, 5}, {10, 30}, {50, 0}, {60, 40}});
  ASSERT_EQ(section.size(), 75u);
  std::vector<int32_t> all(75);
  ASSERT_TRUE(section.read(0, all).ok());
  for (uint64_t i = 0; i < 75; ++i) EXPECT_EQ(all[i], static_cast<int32_t>(section.source_position(i)));
  EXPECT_EQ(all[4], 7);
  EXPECT_EQ(all[5], 10);
  EXPECT_EQ(all[35], 60);
  for (uint64_t first = 0; first <= 75; ++first) {
    std::vector<int32_t> part(75 - first);
    ASSERT_TRUE(section.read(first, part).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(first)));
  }
  std::vector<int32_t> beyond(2);
  EXPECT_EQ(section.read(74, beyond).code(), absl::StatusCode::kOutOfRange);
  // [3, 8) of the first, [10, 25), [25, 40), [60, 90) and [90, 100); the empty one is of nobody.
  ASSERT_EQ(section.document_count(), 5u);
  std::vector<TokenRange> found;
  for (uint64_t i = 0; i < 5; ++i) found.push_back(section.document(i));
  EXPECT_THAT(found, ElementsAre(TokenRange{0, 5}, TokenRange{5, 15}, TokenRange{20, 15}, TokenRange{35, 30},
                                 TokenRange{65, 10}));
  for (const TokenRange& document : found) {
    for (uint64_t at = document.first; at < document.first + document.count; ++at) {
      EXPECT_EQ(section.document_end(at), document.first + document.count) << at;
    }
  }
}

}  // namespace
}  // namespace telar::data
