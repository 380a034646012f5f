#include "worker/prepare/pipeline.h"

#include <utility>

namespace telar::prepare {
namespace {

// Documents may be longer than a chunk; then this bounds what is under way.
constexpr size_t kMostBytes = size_t{64} << 20;

}  // namespace

Pipeline::Pipeline(DocumentReader& reader, const std::vector<Input>& inputs, const Tokenizer& tokenizer,
                   std::string field, unsigned threads)
    : reader_(reader), inputs_(inputs), tokenizer_(tokenizer), field_(std::move(field)), most_(2 * threads + 2) {
  threads_.emplace_back([this] { read(); });
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { tokenize(); });
}

Pipeline::~Pipeline() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pipeline::read() {
  Chunk chunk;
  while (reader_.next(chunk)) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      const uint64_t under_way = begun_ - taken_;
      return stop_ || under_way == 0 || (under_way < most_ && bytes_ + chunk.bytes.size() <= kMostBytes);
    });
    if (stop_) return;
    bytes_ += chunk.bytes.size();
    waiting_.push_back({begun_++, std::move(chunk)});
    changed_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  all_read_ = true;
  changed_.notify_all();
}

void Pipeline::tokenize() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || all_read_ || !waiting_.empty(); });
    if (stop_ || waiting_.empty()) return;
    const Numbered work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    Batch batch = batch_of(work.chunk);
    lock.lock();
    done_.emplace(work.number, std::pair(std::move(batch), work.chunk.bytes.size()));
    changed_.notify_all();
  }
}

std::optional<Batch> Pipeline::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_.contains(taken_) || (all_read_ && taken_ == begun_); });
  const auto found = done_.find(taken_);
  if (found == done_.end()) return std::nullopt;
  Batch batch = std::move(found->second.first);
  bytes_ -= found->second.second;
  done_.erase(found);
  ++taken_;
  changed_.notify_all();
  return batch;
}

Batch Pipeline::batch_of(const Chunk& chunk) const {
  Batch batch{.file = chunk.file, .read_bytes = chunk.read_bytes, .status = chunk.status};
  batch.ids.reserve(chunk.bytes.size() / 2);
  batch.items.reserve(chunk.pieces.size());
  const bool jsonl = inputs_[chunk.file].jsonl;
  std::string field_text;
  for (const Piece& piece : chunk.pieces) {
    std::string_view text = std::string_view(chunk.bytes).substr(piece.begin, piece.size);
    Item item{.begin = batch.ids.size(), .after = piece.after};
    item.fault = jsonl ? json_text(text, field_, piece.line, field_text) : check_text(text, piece.line);
    if (jsonl) text = field_text;
    if (!item.fault && !text.empty()) {
      tokenizer_.append(text, {}, batch.ids);
      batch.ids.push_back(tokenizer_.end_of_document());
      item.size = batch.ids.size() - item.begin;
      item.text_bytes = text.size();
    }
    batch.items.push_back(std::move(item));
  }
  return batch;
}

}  // namespace telar::prepare
