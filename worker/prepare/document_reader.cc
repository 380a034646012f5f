#include "worker/prepare/document_reader.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace telar::prepare {
namespace {

constexpr size_t kReadBytes = size_t{1} << 18;

std::string_view without_break(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos; }

}  // namespace

DocumentReader::DocumentReader(const std::vector<Input>& inputs, TextSplit split, std::string separator, Position from)
    : inputs_(inputs), split_(split), separator_(std::move(separator)), at_(from), block_(kReadBytes) {
  for (uint64_t file = 0; file < from.file && file < inputs.size(); ++file) earlier_bytes_ += inputs[file].bytes;
}

bool DocumentReader::next(Chunk& chunk) {
  while (at_.file < inputs_.size() && !failed_) {
    chunk = Chunk{.file = at_.file};
    chunk.status = fill(chunk);
    failed_ = !chunk.status.ok();
    chunk.read_bytes = earlier_bytes_ + (stream_ == nullptr ? 0 : stream_->file_bytes());
    if (failed_ || !chunk.pieces.empty()) return true;
  }
  return false;
}

absl::Status DocumentReader::fill(Chunk& chunk) {
  if (stream_ == nullptr) {
    auto stream = open_stream(input().path);
    if (!stream.ok()) return stream.status();
    if (auto status = (*stream)->skip(at_.offset); !status.ok()) return status;
    stream_ = *std::move(stream);
    block_begin_ = block_end_ = 0;
  }
  chunk.bytes.reserve(kChunkBytes + kChunkBytes / 4);
  while (chunk.bytes.size() < kChunkBytes) {
    const auto added = add_document(chunk);
    if (!added.ok()) return added.status();
    if (*added) continue;
    earlier_bytes_ += input().bytes;
    stream_.reset();
    at_ = {at_.file + 1};
    break;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> DocumentReader::add_document(Chunk& chunk) {
  return !input().jsonl && split_ == TextSplit::kFile ? add_file(chunk) : add_lines(chunk);
}

absl::StatusOr<bool> DocumentReader::add_file(Chunk& chunk) {
  if (!chunk.pieces.empty() || at_.offset > 0) return false;
  for (;;) {
    if (auto status = refill(); !status.ok()) return status;
    if (block_begin_ == block_end_) break;
    chunk.bytes.append(block_.data() + block_begin_, block_end_ - block_begin_);
    block_begin_ = block_end_;
    if (chunk.bytes.size() > kMostDocumentBytes) return too_long(1);
  }
  at_.offset = chunk.bytes.size();
  chunk.pieces.push_back({0, chunk.bytes.size(), 1, {at_.file + 1}});
  return true;
}

absl::StatusOr<bool> DocumentReader::add_lines(Chunk& chunk) {
  const bool jsonl = input().jsonl, paragraph = !jsonl && split_ == TextSplit::kParagraph;
  size_t begin = chunk.bytes.size();
  uint64_t line = at_.line + 1;
  bool any = false;
  for (;;) {
    const size_t line_begin = chunk.bytes.size();
    const auto more = append_line(chunk.bytes, begin);
    if (!more.ok()) return more.status();
    const std::string_view text = std::string_view(chunk.bytes).substr(line_begin);
    const bool ends =
        !*more || (paragraph && is_blank(text)) || (!jsonl && !paragraph && without_break(text) == separator_);
    if (!*more && !any) return false;
    if (!any && (jsonl || paragraph) && is_blank(text)) {  // Nothing has begun yet.
      chunk.bytes.resize(begin);
      line = at_.line + 1;
      continue;
    }
    if (ends) chunk.bytes.resize(line_begin);
    any = any || !ends;
    if (ends || jsonl) break;
  }
  const std::string_view document = without_break(std::string_view(chunk.bytes).substr(begin));
  chunk.pieces.push_back({begin, document.size(), line, at_});
  return true;
}

absl::StatusOr<bool> DocumentReader::append_line(std::string& out, size_t begin) {
  const size_t before = out.size();
  for (;;) {
    if (auto status = refill(); !status.ok()) return status;
    const char* from = block_.data() + block_begin_;
    const size_t left = block_end_ - block_begin_;
    const auto* end = static_cast<const char*>(std::memchr(from, '\n', left));
    const size_t count = end == nullptr ? left : static_cast<size_t>(end - from) + 1;
    out.append(from, count);
    block_begin_ += count;
    if (out.size() - begin > kMostDocumentBytes) return too_long(at_.line + 1);
    if (end == nullptr && left > 0) continue;
    at_.offset += out.size() - before;
    at_.line += out.size() > before ? 1 : 0;
    return out.size() > before;
  }
}

absl::Status DocumentReader::refill() {
  if (block_begin_ < block_end_) return absl::OkStatus();
  const auto count = stream_->read(block_);
  if (!count.ok()) return count.status();
  block_begin_ = 0;
  block_end_ = *count;
  return absl::OkStatus();
}

absl::Status DocumentReader::too_long(uint64_t line) const {
  return absl::OutOfRangeError(absl::StrCat(input().path, ":", line, ": a document of more than ", kMostDocumentBytes,
                                            " bytes; cut it up, by paragraphs or a separator if it is text"));
}

}  // namespace telar::prepare
