#include "worker/data/split.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/data/permutation.h"

namespace telar::data {
namespace {

absl::Status check_fraction(double eval_fraction) {
  if (eval_fraction > 0 && eval_fraction < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("eval_fraction ", eval_fraction, ": must be in (0, 1)"));
}

// Fowler, Noll and Vo's FNV-1a over ids instead of bytes; mix() at the end spreads it over all bits.
class TokenHash {
 public:
  void add(int32_t id) { hash_ = (hash_ ^ static_cast<uint32_t>(id)) * 0x100000001b3u; }
  uint64_t value() const { return mix(hash_); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

void append(std::vector<TokenRange>& ranges, TokenRange range) {
  if (range.count == 0) return;
  if (!ranges.empty() && ranges.back().first + ranges.back().count == range.first) {
    ranges.back().count += range.count;
  } else {
    ranges.push_back(range);
  }
}

// Numbers of the documents that have tokens and a hash below that, ascending.
absl::StatusOr<std::vector<uint64_t>> documents_below(const TokenSource& source, const Documents& documents,
                                                      uint64_t below, int32_t end_of_document) {
  std::vector<uint64_t> found;
  std::vector<int32_t> block(1u << 18);
  uint64_t begin = 0, read_end = 0;  // `block` has the tokens up to read_end.
  for (uint64_t index = 0; index < documents.count(); ++index) {
    const uint64_t end = documents.end(index);
    TokenHash hash;
    for (uint64_t at = begin; at < end; ++at) {
      const size_t within = at % block.size();
      if (at == read_end) {
        const size_t count = std::min<uint64_t>(block.size(), source.size() - at);
        if (auto status = source.read(at, std::span(block).first(count)); !status.ok()) return status;
        read_end += count;
      }
      if (block[within] != end_of_document) hash.add(block[within]);
    }
    if (end > begin && hash.value() < below) found.push_back(index);
    begin = end;
  }
  return found;
}

}  // namespace

absl::StatusOr<Split> hold_out_tail(uint64_t tokens, double eval_fraction, uint32_t sequence_length) {
  if (auto status = check_fraction(eval_fraction); !status.ok()) return status;
  const uint64_t window = uint64_t{sequence_length} + 1;
  const auto wanted = static_cast<uint64_t>(std::floor(static_cast<double>(tokens) * eval_fraction));
  const uint64_t eval = std::max(window, wanted);
  if (tokens < eval || tokens - eval < window) {
    return absl::InvalidArgumentError(absl::StrCat("data has ", tokens, " tokens: with ", eval,
                                                   " held out (eval_fraction ", eval_fraction, ") sequence_length ",
                                                   sequence_length, " needs at least ", eval + window));
  }
  return Split{{{0, tokens - eval}}, {{tokens - eval, eval}}};
}

absl::StatusOr<Split> hold_out_documents(const TokenSource& source, const Documents& documents, double eval_fraction,
                                         int32_t end_of_document, const IndexCache& cache) {
  if (auto status = check_fraction(eval_fraction); !status.ok()) return status;
  const auto below = static_cast<uint64_t>(std::ldexp(eval_fraction, 64));
  const std::string what = absl::StrCat("documents with hashes below ", below, " by ", end_of_document);
  const auto held =
      cache.numbers(source.files(), what, [&] { return documents_below(source, documents, below, end_of_document); });
  if (!held.ok()) return held.status();
  Split split;
  uint64_t begin = 0;
  for (const uint64_t index : *held) {
    const uint64_t first = index == 0 ? 0 : documents.end(index - 1), end = documents.end(index);
    append(split.train, {begin, first - begin});
    append(split.eval, {first, end - first});
    begin = end;
  }
  append(split.train, {begin, source.size() - begin});
  if (split.eval.empty() || split.train.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("data has ", documents.count(), " documents: eval_fraction ",
                                                   eval_fraction, " holds ", split.eval.empty() ? "none" : "all",
                                                   " of them out"));
  }
  return split;
}

}  // namespace telar::data
