#include "worker/train/snapshot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/memory_plan.h"

namespace telar::train {

using parallel::FlatLayout;
using parallel::Piece;

std::vector<Snapshot::Run> Snapshot::runs_of(std::span<const Piece> pieces, const Sources& sources) {
  std::vector<Run> runs;
  for (const Piece& piece : pieces) {
    if (!runs.empty() && runs.back().bucket == piece.bucket && piece.first >= runs.back().range.end() &&
        piece.first - runs.back().range.end() < FlatLayout::kAlignment) {
      runs.back().range.count = piece.first + piece.slice.count - runs.back().range.first;
      continue;
    }
    Run run{.bucket = piece.bucket, .range = {piece.first, piece.slice.count}};
    for (size_t kind = 0; kind < sources.kinds; ++kind) run.device.push_back(sources.locate(kind, piece));
    runs.push_back(std::move(run));
  }
  std::ranges::sort(runs, {}, [](const Run& run) { return std::pair(run.bucket, run.range.first); });
  return runs;
}

uint64_t Snapshot::place(std::vector<Run>& runs) {
  uint64_t end = 0;
  for (Run& run : runs) {
    run.offset = end;
    end += engine::align_up(static_cast<uint64_t>(run.range.count) * sizeof(float));
  }
  return end;
}

uint64_t Snapshot::bytes_of(std::span<const Piece> pieces, size_t kinds, uint64_t extra_bytes) {
  std::vector<Run> runs = runs_of(pieces, {});
  return kinds * place(runs) + extra_bytes;
}

absl::StatusOr<std::unique_ptr<Snapshot>> Snapshot::create(backend::Device& device, std::span<const Piece> pieces,
                                                           const Sources& sources) {
  std::unique_ptr<Snapshot> snapshot(new Snapshot);
  snapshot->runs_ = runs_of(pieces, sources);
  snapshot->kind_bytes_ = place(snapshot->runs_);
  snapshot->extra_bytes_ = sources.extra.size();
  snapshot->extra_offset_ = sources.kinds * snapshot->kind_bytes_;
  const uint64_t bytes = snapshot->extra_offset_ + sources.extra.size();
  std::vector<engine::HostCopy::Part> parts;
  for (size_t kind = 0; kind < sources.kinds; ++kind) {
    for (const Run& run : snapshot->runs_) {
      parts.push_back({run.device[kind], kind * snapshot->kind_bytes_ + run.offset,
                       static_cast<uint64_t>(run.range.count) * sizeof(float)});
    }
  }
  parts.push_back({sources.extra.data(), snapshot->extra_offset_, sources.extra.size()});
  auto copy = engine::HostCopy::create(device, std::move(parts), bytes);
  if (!copy.ok()) return copy.status();
  snapshot->copy_ = *std::move(copy);
  return snapshot;
}

absl::Status Snapshot::read(size_t kind, const Piece& piece, std::span<float> out) const {
  const auto place = [](const Run& run) { return std::pair(run.bucket, run.range.first); };
  auto run = std::ranges::upper_bound(runs_, std::pair(piece.bucket, piece.first), {}, place);
  const auto count = static_cast<int64_t>(out.size());
  if (run == runs_.begin() || (--run)->bucket != piece.bucket || piece.first + count > run->range.end()) {
    return absl::InternalError(absl::StrCat("snapshot: elements [", piece.first, ", ", piece.first + count,
                                            ") of bucket ", piece.bucket, " are not in it"));
  }
  const std::byte* const from =
      copy_->memory().data() + kind * kind_bytes_ + run->offset + (piece.first - run->range.first) * sizeof(float);
  std::memcpy(out.data(), from, out.size_bytes());
  return absl::OkStatus();
}

}  // namespace telar::train
