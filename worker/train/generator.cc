#include "worker/train/generator.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/model/random.h"

namespace telar::train {
namespace {

// temperature 0: the most likely. `uniform` in [0, 1).
int32_t draw(const std::vector<float>& logits, double temperature, double uniform) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<int32_t>(best - logits.begin());
  std::vector<double> weights(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[i]) - *best) / temperature);
    total += weights[i];
  }
  double rest = uniform * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    rest -= weights[i];
    if (rest < 0) return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(best - logits.begin());  // Rounding left a little over.
}

}  // namespace

absl::StatusOr<std::optional<std::string>> generate(Replica& replica, const tokenizer::Tokenizer* tokenizer,
                                                    const std::atomic<bool>& stop) {
  const v1::JobSpec& spec = replica.shape().spec;
  const size_t window = spec.batch().sequence_length();
  const int32_t end = tokenizer != nullptr ? tokenizer->end_of_document() : -1;
  std::vector<int32_t> ids;
  if (tokenizer != nullptr) ids = tokenizer->encode(spec.sample().prompt(), {.special_tokens = true});
  if (ids.empty()) ids.push_back(std::max(end, 0));
  const size_t prompt = ids.size();
  std::mt19937_64 random(spec.seed() ^ model::tensor_stream("sample"));
  std::uniform_real_distribution<double> uniform(0, 1);
  for (uint32_t i = 0; i < spec.sample().tokens(); ++i) {
    if (i > 0 && replica.asked_to_stop()) return std::nullopt;
    const size_t first = ids.size() > window ? ids.size() - window : 0;
    auto logits = replica.next_logits(std::span(ids).subspan(first), static_cast<int32_t>(ids.size() - first - 1), {},
                                      stop.load());
    if (!logits.ok()) return logits.status();
    // A vocabulary may be padded beyond the tokenizer's: no text stands for those ids.
    if (tokenizer != nullptr) logits->resize(std::min(logits->size(), static_cast<size_t>(tokenizer->vocab_size())));
    const int32_t next = draw(*logits, spec.sample().temperature(), uniform(random));
    if (next == end) break;
    ids.push_back(next);
  }
  const std::span<const int32_t> made = std::span<const int32_t>(ids).subspan(prompt);
  if (tokenizer != nullptr) return tokenizer->decode(made);
  return absl::StrJoin(made, " ");
}

}  // namespace telar::train
