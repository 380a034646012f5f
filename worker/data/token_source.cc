#include "worker/data/token_source.h"

#include <glob.h>
#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/llmc_format.h"
#include "worker/data/mapped_file.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::data {
namespace {

enum class Encoding : uint8_t { kBytesThenEnd, kU16, kU32 };

struct Segment {
  std::string path;
  MappedFile file;
  Encoding encoding;
  uint64_t begin;  // Position of the first token in the whole source.
  uint64_t tokens;

  // Of a token in the file.
  uint64_t offset(uint64_t token) const {
    if (encoding == Encoding::kBytesThenEnd) return token;
    return kLlmcHeaderBytes + token * (encoding == Encoding::kU32 ? 4 : 2);
  }
};

// Widens `count` little-endian tokens from `first` on; false when one is not below `limit`.
template <typename T>
bool widen(const std::byte* tokens, uint64_t first, std::span<int32_t> out, uint32_t limit) {
  uint32_t greatest = 0;
  const std::byte* from = tokens + first * sizeof(T);
  for (size_t at = 0; at < out.size(); ++at) {
    T id;
    std::memcpy(&id, from + at * sizeof(T), sizeof(T));
    greatest = std::max<uint32_t>(greatest, id);
    out[at] = static_cast<int32_t>(id);
  }
  return greatest < limit;
}

class ListedDocuments : public Documents {
 public:
  explicit ListedDocuments(std::vector<uint64_t> ends) : ends_(std::move(ends)) {}
  uint64_t count() const override { return ends_.size(); }
  uint64_t end(uint64_t index) const override { return ends_[index]; }

 private:
  const std::vector<uint64_t> ends_;
};

class SegmentedSource : public TokenSource {
 public:
  SegmentedSource(std::vector<Segment> segments, uint32_t vocab)
      : segments_(std::move(segments)), size_(segments_.back().begin + segments_.back().tokens), vocab_(vocab) {}

  uint64_t size() const override { return size_; }

  absl::Status read(uint64_t first, std::span<int32_t> out) const override {
    if (first > size_ || out.size() > size_ - first) {
      return absl::OutOfRangeError(
          absl::StrCat("tokens [", first, ", ", first, " + ", out.size(), ") of a source that has ", size_));
    }
    for (auto segment = segment_of(first); !out.empty(); ++segment) {
      const uint64_t within = first - segment->begin;
      const size_t count = std::min<uint64_t>(out.size(), segment->tokens - within);
      if (auto status = copy(*segment, within, out.first(count), vocab_); !status.ok()) return status;
      first += count;
      out = out.subspan(count);
    }
    return absl::OkStatus();
  }

  absl::Status check_vocab(int64_t limit) const override {
    const uint32_t below = static_cast<uint32_t>(std::clamp<int64_t>(limit, 0, INT32_MAX));
    return for_each_block(below, [](uint64_t, std::span<const int32_t>) {});
  }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    for (const Segment& segment : segments_) paths.push_back(segment.path);
    return paths;
  }

  void will_need(uint64_t first, uint64_t count) const override {
    if (first >= size_) return;
    count = std::min(count, size_ - first);
    for (auto segment = segment_of(first); count > 0; ++segment) {
      const uint64_t within = first - segment->begin, here = std::min(count, segment->tokens - within);
      segment->file.will_need(segment->offset(within), segment->offset(within + here) - segment->offset(within));
      first += here;
      count -= here;
    }
  }

 private:
  absl::StatusOr<std::unique_ptr<Documents>> do_documents(int32_t end_of_document,
                                                          const IndexCache& cache) const override {
    if (segments_.front().encoding == Encoding::kBytesThenEnd) {
      std::vector<uint64_t> ends;
      for (const Segment& segment : segments_) ends.push_back(segment.begin + segment.tokens);
      return std::make_unique<ListedDocuments>(std::move(ends));
    }
    if (end_of_document < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("data file ", segments_.front().path,
                       ": does not tell where documents end, nor does any token, as no "
                       "tokenizer.end_of_document is known"));
    }
    const std::string what = absl::StrCat("ends of documents by ", end_of_document, ", vocabulary ", vocab_);
    auto ends = cache.numbers(files(), what, [&] { return find_ends(end_of_document); });
    if (!ends.ok()) return ends.status();
    return std::make_unique<ListedDocuments>(*std::move(ends));
  }

  absl::StatusOr<std::vector<uint64_t>> find_ends(int32_t end_of_document) const {
    std::vector<uint64_t> ends;
    bool begins = false;  // Documents begin with the token.
    const absl::Status status = for_each_block(vocab_, [&](uint64_t first, std::span<const int32_t> block) {
      if (first == 0) begins = block[0] == end_of_document;
      for (size_t at = 0; at < block.size(); ++at) {
        if (block[at] != end_of_document) continue;
        const uint64_t end = first + at + (begins ? 0 : 1);
        if (end > 0) ends.push_back(end);
      }
    });
    if (!status.ok()) return status;
    if (ends.empty() || ends.back() != size_) ends.push_back(size_);
    return ends;
  }

  std::vector<Segment>::const_iterator segment_of(uint64_t position) const {
    return std::prev(std::upper_bound(segments_.begin(), segments_.end(), position,
                                      [](uint64_t at, const Segment& segment) { return at < segment.begin; }));
  }

  // Calls `body(first, tokens)` for all tokens in order.
  template <typename Body>
  absl::Status for_each_block(uint32_t limit, Body body) const {
    std::vector<int32_t> memory(1u << 18);
    for (const Segment& segment : segments_) {
      for (uint64_t at = 0; at < segment.tokens; at += memory.size()) {
        const auto block = std::span(memory).first(std::min<uint64_t>(memory.size(), segment.tokens - at));
        if (auto status = copy(segment, at, block, limit); !status.ok()) return status;
        body(segment.begin + at, std::span<const int32_t>(block));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status copy(const Segment& segment, uint64_t within, std::span<int32_t> out, uint32_t limit) {
    const std::byte* data = segment.file.bytes().data();
    bool fits = false;
    switch (segment.encoding) {
      case Encoding::kU16:
        fits = widen<uint16_t>(data + kLlmcHeaderBytes, within, out, limit);
        break;
      case Encoding::kU32:
        fits = widen<uint32_t>(data + kLlmcHeaderBytes, within, out, limit);
        break;
      case Encoding::kBytesThenEnd: {
        const bool ends = within + out.size() == segment.tokens;
        fits = widen<uint8_t>(data, within, out.first(out.size() - ends), limit);
        if (ends) out.back() = tokenizer::kByteEndOfDocument;
        fits = fits && (!ends || limit > static_cast<uint32_t>(tokenizer::kByteEndOfDocument));
        break;
      }
    }
    return fits ? absl::OkStatus() : foreign_id(segment, within, out, limit);
  }

  static absl::Status foreign_id(const Segment& segment, uint64_t within, std::span<const int32_t> ids,
                                 uint32_t limit) {
    const auto bad =
        std::find_if(ids.begin(), ids.end(), [limit](int32_t id) { return static_cast<uint32_t>(id) >= limit; });
    const uint64_t token = within + static_cast<uint64_t>(bad - ids.begin());
    return absl::DataLossError(absl::StrCat("data file ", segment.path, ": token ", token, " (offset ",
                                            segment.offset(token), ") has id ", static_cast<uint32_t>(*bad),
                                            ", not below the vocabulary of ", limit));
  }

  const std::vector<Segment> segments_;  // Not empty, each with at least one token, by `begin`.
  const uint64_t size_;
  const uint32_t vocab_;
};

// Adds the matches of `pattern` to `files`.
absl::Status expand_glob(const std::string& pattern, std::vector<std::string>& files) {
  int read_error = 0;
  static thread_local int* current_error = nullptr;  // glob() hands no context to its callback.
  current_error = &read_error;
  glob_t found{};
  const int result = ::glob(
      pattern.c_str(), GLOB_NOSORT,
      [](const char*, int error) {
        if (error == ENOENT || error == ENOTDIR) return 0;
        *current_error = error;
        return 1;
      },
      &found);
  std::vector<std::string> names(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (result == GLOB_ABORTED) {
    return absl::ErrnoToStatus(read_error ? read_error : EIO, absl::StrCat("data path ", pattern));
  }
  if (result == GLOB_NOSPACE) return absl::ResourceExhaustedError(absl::StrCat("data path ", pattern, ": too many"));
  if (names.empty()) return absl::NotFoundError(absl::StrCat("data path ", pattern, ": matches no file"));
  std::sort(names.begin(), names.end());  // Bytes, whatever the locale: the order of the data must not depend on it.
  files.insert(files.end(), names.begin(), names.end());
  return absl::OkStatus();
}

uint32_t word(std::span<const std::byte> header, size_t index) {
  uint32_t value;
  std::memcpy(&value, header.data() + index * sizeof(value), sizeof(value));
  return value;
}

absl::StatusOr<Segment> text_segment(std::string path) {
  auto file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  const uint64_t tokens = file->bytes().size() + 1;
  return Segment{std::move(path), *std::move(file), Encoding::kBytesThenEnd, 0, tokens};
}

absl::StatusOr<Segment> llmc_segment(std::string path) {
  auto file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  const auto bytes = file->bytes();
  if (bytes.size() < kLlmcHeaderBytes) {
    return absl::DataLossError(
        absl::StrCat("data file ", path, ": ", bytes.size(), " bytes, shorter than the header of ", kLlmcHeaderBytes));
  }
  const uint32_t magic = word(bytes, kLlmcMagicWord);
  const uint32_t version = word(bytes, kLlmcVersionWord);
  std::optional<Encoding> encoding;
  if (magic == kLlmcMagicU16 && version == kLlmcVersionU16) encoding = Encoding::kU16;
  if (magic == kLlmcMagicU32 && version == kLlmcVersionU32) encoding = Encoding::kU32;
  if (!encoding) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data file ", path, ": magic ", magic, " version ", version, ", not a token shard of llm.c (", kLlmcMagicU16,
        " version ", kLlmcVersionU16, " or ", kLlmcMagicU32, " version ", kLlmcVersionU32, ")"));
  }
  const uint64_t tokens = word(bytes, kLlmcTokensWord);
  const uint64_t expected = kLlmcHeaderBytes + tokens * (*encoding == Encoding::kU16 ? 2 : 4);
  if (bytes.size() != expected) {
    return absl::DataLossError(absl::StrCat("data file ", path, ": ", bytes.size(), " bytes, but its header says ",
                                            tokens, " tokens = ", expected, " bytes"));
  }
  if (tokens == 0) return absl::InvalidArgumentError(absl::StrCat("data file ", path, ": empty (0 tokens)"));
  return Segment{std::move(path), *std::move(file), *encoding, 0, tokens};
}

absl::StatusOr<std::unique_ptr<TokenSource>> open_segments(const std::vector<std::string>& paths, int64_t vocab,
                                                           absl::StatusOr<Segment> (*open)(std::string)) {
  if (vocab <= 0 || vocab > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("vocabulary ", vocab, ": must be in [1, ", INT32_MAX, "]"));
  }
  auto files = expand_paths(paths);
  if (!files.ok()) return files.status();
  std::vector<Segment> segments;
  uint64_t begin = 0;
  for (std::string& path : *files) {
    auto segment = open(std::move(path));
    if (!segment.ok()) return segment.status();
    segment->begin = begin;
    begin += segment->tokens;
    segments.push_back(*std::move(segment));
  }
  return std::make_unique<SegmentedSource>(std::move(segments), static_cast<uint32_t>(vocab));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> expand_paths(const std::vector<std::string>& paths) {
  if (paths.empty()) return absl::InvalidArgumentError("no data paths");
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (path.empty()) return absl::InvalidArgumentError("a data path is empty");
    struct stat about {};
    const bool plain = path.find_first_of("*?[") == std::string::npos;
    if (plain || ::stat(path.c_str(), &about) == 0) {
      files.push_back(path);
    } else if (auto status = expand_glob(path, files); !status.ok()) {
      return status;
    }
  }
  return files;
}

absl::StatusOr<std::unique_ptr<TokenSource>> open_text(const std::vector<std::string>& paths, int64_t vocab) {
  if (vocab < tokenizer::kByteVocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary ", vocab, ": text under the byte tokenizer needs at least ", tokenizer::kByteVocab));
  }
  return open_segments(paths, vocab, text_segment);
}

absl::StatusOr<std::unique_ptr<TokenSource>> open_llmc_bin(const std::vector<std::string>& paths, int64_t vocab) {
  return open_segments(paths, vocab, llmc_segment);
}

}  // namespace telar::data
