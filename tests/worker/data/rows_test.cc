// Rows that look at documents: a document a row, masked first tokens, places where documents start.
#include <algorithm>
#include <map>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/data/fake_source.h"
#include "worker/data/sampler.h"

namespace telar::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Read {
  std::vector<int32_t> inputs, targets, starts;
};
Read read(const Sampler& sampler, uint64_t sample, bool starts = true) {
  const size_t length = sampler.sequence_length();
  Read row{std::vector<int32_t>(length, -9), std::vector<int32_t>(length, -9),
           std::vector<int32_t>(starts ? length : 0, -9)};
  const absl::Status status = sampler.read(sample, {row.inputs, row.targets, row.starts});
  EXPECT_TRUE(status.ok()) << status;
  return row;
}

// Random documents of up to `longest` tokens, some of them without any; returns their ends.
std::vector<uint64_t> random_ends(std::mt19937& random, size_t count, uint32_t longest) {
  std::vector<uint64_t> ends;
  uint64_t end = 0;
  for (size_t i = 0; i < count; ++i) ends.push_back(end += random() % (longest + 1));
  ends.push_back(end + 40);
  return ends;
}

// Of each token, where its document starts.
std::vector<uint64_t> starts_of(const std::vector<uint64_t>& ends) {
  std::vector<uint64_t> starts;
  uint64_t begin = 0;
  for (const uint64_t end : ends) {
    starts.resize(end, begin);
    begin = end;
  }
  return starts;
}

// Against a look at every token. Sections of two pieces, of which one cuts a document.
TEST(PackedRows, MarkAndMaskDocuments) {
  std::mt19937 random(1);
  for (const uint32_t longest : {1, 3, 10, 60}) {
    const std::vector<uint64_t> ends = random_ends(random, 60, longest), starts = starts_of(ends);
    const FakeDocuments documents(ends);
    const CountingSource source(ends.back());
    const uint64_t cut = ends[20] / 2, middle = ends[30], after = ends[35];
    const Section section(source, &documents, {{cut, middle - cut}, {after, ends.back() - after}});
    for (const uint32_t length : {1, 7, 16}) {
      for (const bool mask : {false, true}) {
        const RowOptions options{.sequence_length = length, .mask_document_starts = mask};
        const Sampler sampler = Sampler::shuffled(section, options, 3).value();
        for (uint64_t sample = 0; sample < sampler.rows(); ++sample) {
          const Read row = read(sampler, sample);
          const TokenRange tokens = sampler.tokens_of(sample);
          for (uint64_t t = 0; t < length; ++t) {
            const uint64_t in_source = section.source_position(tokens.first + t);
            const uint64_t target = section.source_position(tokens.first + t + 1);
            ASSERT_EQ(row.inputs[t], static_cast<int32_t>(in_source));
            const bool starts_document = starts[target] == target;
            ASSERT_EQ(row.targets[t], mask && starts_document ? -1 : static_cast<int32_t>(target));
            // The piece's first document may have started before it.
            int32_t start = static_cast<int32_t>(t);
            while (start > 0 && starts[section.source_position(tokens.first + static_cast<uint64_t>(start) - 1)] ==
                                    starts[in_source]) {
              --start;
            }
            ASSERT_EQ(row.starts[t], start) << "token " << t;
          }
        }
      }
    }
  }
}

TEST(DocumentRows, HoldOneDocumentAndPadding) {
  const CountingSource source(20);
  const FakeDocuments documents({5, 6, 6, 8, 20});  // Of 5, 1, 0, 2 and 12 tokens.
  const RowOptions options{.sequence_length = 4, .kind = RowOptions::Kind::kDocument};
  const Sampler sampler = Sampler::in_order(section_of(source, {0, 20}, &documents), options).value();
  ASSERT_EQ(sampler.rows(), 5u);
  const auto expect = [&](uint64_t sample, std::vector<int32_t> inputs, std::vector<int32_t> targets,
                          std::vector<int32_t> starts) {
    const Read row = read(sampler, sample);
    EXPECT_EQ(row.inputs, inputs) << sample;
    EXPECT_EQ(row.targets, targets) << sample;
    EXPECT_EQ(row.starts, starts) << sample;
    EXPECT_EQ(read(sampler, sample, false).targets, targets) << sample;
  };
  expect(0, {0, 1, 2, 3}, {1, 2, 3, 4}, {0, 0, 0, 0});
  expect(1, {6, 0, 0, 0}, {7, -1, -1, -1}, {0, 1, 1, 1});
  expect(2, {8, 9, 10, 11}, {9, 10, 11, 12}, {0, 0, 0, 0});
  expect(3, {12, 13, 14, 15}, {13, 14, 15, 16}, {0, 0, 0, 0});
  expect(4, {16, 17, 18, 0}, {17, 18, 19, -1}, {0, 0, 0, 3});
  std::vector<int32_t> four(4);
  EXPECT_EQ(sampler.read(5, {four, four, {}}).code(), absl::StatusCode::kOutOfRange);
}

// Each token but a document's first is a target once an epoch, at every shape of documents.
TEST(DocumentRows, AnEpochTakesEachTargetOnce) {
  std::mt19937 random(2);
  for (const uint32_t longest : {2, 9, 100}) {
    const std::vector<uint64_t> ends = random_ends(random, 500, longest), starts = starts_of(ends);
    const FakeDocuments documents(ends);
    const CountingSource source(ends.back());
    const RowOptions options{.sequence_length = 8, .kind = RowOptions::Kind::kDocument, .mask_document_starts = true};
    const Sampler sampler = Sampler::shuffled(section_of(source, {0, ends.back()}, &documents), options, 5).value();
    std::vector<std::vector<int32_t>> orders;
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::map<int32_t, int> seen;
      std::vector<int32_t> order;
      for (uint64_t at = 0; at < sampler.rows(); ++at) {
        const Read row = read(sampler, epoch * sampler.rows() + at);
        order.push_back(row.targets[0]);
        for (const int32_t target : row.targets) ++seen[target];
      }
      seen.erase(-1);
      for (uint64_t token = 0; token < ends.back(); ++token) {
        const auto found = seen.find(static_cast<int32_t>(token));
        ASSERT_EQ(found == seen.end() ? 0 : found->second, starts[token] == token ? 0 : 1) << token;
      }
      orders.push_back(order);
    }
    EXPECT_NE(orders[0], orders[1]);
    EXPECT_NE(orders[1], orders[2]);
  }
}

TEST(Rows, RefuseWhatNeedsDocumentsWithoutThem) {
  const CountingSource source(100);
  const auto refused = [&](const RowOptions& options) {
    return std::string(Sampler::shuffled(section_of(source, {0, 100}), options, 0).status().message());
  };
  EXPECT_THAT(refused({.sequence_length = 4, .kind = RowOptions::Kind::kDocument}), HasSubstr("a document a row"));
  EXPECT_THAT(refused({.sequence_length = 4, .mask_document_starts = true}), HasSubstr("mask_document_starts"));
  const Sampler plain = Sampler::in_order(section_of(source, {0, 100}), {.sequence_length = 4}).value();
  std::vector<int32_t> four(4);
  EXPECT_EQ(plain.read(0, {four, four, four}).code(), absl::StatusCode::kInvalidArgument);
  const FakeDocuments single({1, 2, 3});
  EXPECT_THAT(std::string(Sampler::in_order(section_of(source, {0, 3}, &single),
                                            {.sequence_length = 4, .kind = RowOptions::Kind::kDocument})
                              .status()
                              .message()),
              HasSubstr("3 documents: none has two tokens"));
}

}  // namespace
}  // namespace telar::data
