#include "worker/train/evaluator.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <span>

#include "worker/train/failure.h"

namespace telar::train {
namespace {

// Sum over the valid targets, and their number; nothing when some rank asked to stop before the last batch.
absl::StatusOr<std::optional<std::pair<double, double>>> evaluate_part(Replica& replica, const EvalPart& part,
                                                                       const std::atomic<bool>& stop) {
  const plan::RunShape& shape = replica.shape();
  const uint64_t micro = shape.spec.batch().micro(), length = shape.spec.batch().sequence_length();
  const uint64_t replicas = static_cast<uint64_t>(shape.mesh.dp_size);
  std::vector<int32_t> inputs(micro * length), targets(micro * length);
  std::vector<int32_t> starts(shape.spec.data().reset_at_documents() ? micro * length : 0);
  double loss = 0, valid = 0;
  for (uint64_t first = 0; first < part.samples; first += micro * replicas) {
    if (first > 0 && replica.asked_to_stop()) return std::nullopt;
    // Rows beyond the end are filled up with targets that do not count.
    std::fill(inputs.begin(), inputs.end(), 0);
    std::fill(targets.begin(), targets.end(), -1);
    std::fill(starts.begin(), starts.end(), 0);
    for (uint64_t i = 0; i < micro; ++i) {
      const uint64_t sample = first + static_cast<uint64_t>(shape.mesh.dp) * micro + i;
      if (sample >= part.samples) break;
      const auto of_row = [&](std::vector<int32_t>& all) {
        return all.empty() ? std::span<int32_t>() : std::span(all).subspan(i * length, length);
      };
      const absl::Status status = part.rows.read(sample, {of_row(inputs), of_row(targets), of_row(starts)});
      if (!status.ok()) return with_class(v1::DATA, status);
    }
    const auto batch = replica.eval_batch(inputs, targets, starts, stop.load());
    if (!batch.ok()) return batch.status();
    loss += batch->first;
    valid += batch->second;
  }
  return std::pair<double, double>(loss, valid);
}

}  // namespace

absl::StatusOr<EvalResult> evaluate(Replica& replica, const std::vector<EvalPart>& parts,
                                    const std::atomic<bool>& stop) {
  EvalResult result;
  double loss = 0, valid = 0;
  for (const EvalPart& part : parts) {
    if (!result.parts.empty() && replica.asked_to_stop()) return EvalResult{.stopped = true};
    const auto sums = evaluate_part(replica, part, stop);
    if (!sums.ok()) return sums.status();
    if (!sums->has_value()) return EvalResult{.stopped = true};
    const auto [part_loss, part_valid] = **sums;
    result.parts.push_back(
        {part.source, part_valid > 0 ? part_loss / part_valid : 0, static_cast<uint64_t>(part_valid)});
    loss += part_loss;
    valid += part_valid;
  }
  result.loss = valid > 0 ? loss / valid : 0;
  result.tokens = static_cast<uint64_t>(valid);
  return result;
}

v1::EvalReport report_of(const EvalResult& result, uint64_t step, double seconds) {
  v1::EvalReport report;
  report.set_step(step);
  report.set_loss(result.loss);
  report.set_tokens(result.tokens);
  report.set_seconds(seconds);
  spdlog::info("step {}: held-out loss {:.4f} over {} tokens", step, result.loss, result.tokens);
  for (const EvalResult::Part& part : result.parts) {
    if (result.parts.size() == 1) break;
    v1::SourceLoss& source = *report.add_sources();
    source.set_name(part.source);
    source.set_loss(part.loss);
    source.set_tokens(part.tokens);
    spdlog::info("  of {}: {:.4f} over {} tokens", part.source, part.loss, part.tokens);
  }
  return report;
}

}  // namespace telar::train
