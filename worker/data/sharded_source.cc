#include "worker/data/sharded_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace telar::data {
namespace {

struct Part {
  MegatronShard shard;
  uint64_t begin;           // Position of its first token in the whole source.
  uint64_t first_document;  // Documents before it.
};

// The part that holds the token or document `at`, by what `begin` says of each.
const Part& part_of(const std::vector<Part>& parts, uint64_t at, uint64_t Part::*begin) {
  const auto after = std::upper_bound(parts.begin(), parts.end(), at,
                                      [begin](uint64_t value, const Part& part) { return value < part.*begin; });
  return *(after - 1);
}

class ShardedDocuments : public Documents {
 public:
  explicit ShardedDocuments(const std::vector<Part>& parts) : parts_(parts) {}
  uint64_t count() const override { return parts_.back().first_document + parts_.back().shard.documents(); }
  uint64_t end(uint64_t index) const override {
    const Part& part = part_of(parts_, index, &Part::first_document);
    return part.begin + part.shard.document_end(index - part.first_document);
  }

 private:
  const std::vector<Part>& parts_;
};

class ShardedSource : public TokenSource {
 public:
  ShardedSource(std::vector<Part> parts, int64_t vocab)
      : parts_(std::move(parts)), size_(parts_.back().begin + parts_.back().shard.tokens()), vocab_(vocab) {}

  uint64_t size() const override { return size_; }

  absl::Status read(uint64_t first, std::span<int32_t> out) const override {
    if (first > size_ || out.size() > size_ - first) {
      return absl::OutOfRangeError(
          absl::StrCat("tokens [", first, ", ", first, " + ", out.size(), ") of a source that has ", size_));
    }
    while (!out.empty()) {
      const Part& part = part_of(parts_, first, &Part::begin);
      const uint64_t within = first - part.begin;
      const size_t count = std::min<uint64_t>(out.size(), part.shard.tokens() - within);
      if (auto status = part.shard.read(within, out.first(count), vocab_); !status.ok()) return status;
      first += count;
      out = out.subspan(count);
    }
    return absl::OkStatus();
  }

  absl::Status check_vocab(int64_t limit) const override {
    const int64_t below = std::clamp<int64_t>(limit, 0, INT32_MAX);
    std::vector<int32_t> block(1u << 18);
    for (const Part& part : parts_) {
      for (uint64_t at = 0; at < part.shard.tokens(); at += block.size()) {
        const size_t count = std::min<uint64_t>(block.size(), part.shard.tokens() - at);
        if (auto status = part.shard.read(at, std::span(block).first(count), below); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    for (const Part& part : parts_) {
      paths.push_back(part.shard.path());
      paths.push_back(part.shard.index_path());
    }
    return paths;
  }

  void will_need(uint64_t first, uint64_t count) const override {
    while (count > 0 && first < size_) {
      const Part& part = part_of(parts_, first, &Part::begin);
      const uint64_t within = first - part.begin, here = std::min(count, part.shard.tokens() - within);
      part.shard.will_need(within, here);
      first += here;
      count -= here;
    }
  }

 private:
  absl::StatusOr<std::unique_ptr<Documents>> do_documents(int32_t, const IndexCache&) const override {
    return std::make_unique<ShardedDocuments>(parts_);
  }

  const std::vector<Part> parts_;  // Not empty, each with at least one token and one document.
  const uint64_t size_;
  const int64_t vocab_;
};

}  // namespace

std::unique_ptr<TokenSource> make_sharded_source(std::vector<MegatronShard> shards, int64_t vocab) {
  std::vector<Part> parts;
  parts.reserve(shards.size());
  uint64_t tokens = 0, documents = 0;
  for (MegatronShard& shard : shards) {
    const uint64_t more_tokens = shard.tokens(), more_documents = shard.documents();
    parts.push_back({std::move(shard), tokens, documents});
    tokens += more_tokens;
    documents += more_documents;
  }
  return std::make_unique<ShardedSource>(std::move(parts), vocab);
}

absl::StatusOr<std::unique_ptr<TokenSource>> open_megatron(const std::vector<std::string>& paths, int64_t vocab) {
  if (vocab <= 0 || vocab > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("vocabulary ", vocab, ": must be in [1, ", INT32_MAX, "]"));
  }
  const auto files = expand_paths(paths);
  if (!files.ok()) return files.status();
  std::vector<MegatronShard> shards;
  for (const std::string& path : *files) {
    auto shard = MegatronShard::open(path);
    if (!shard.ok()) return shard.status();
    shards.push_back(*std::move(shard));
  }
  return make_sharded_source(std::move(shards), vocab);
}

}  // namespace telar::data
