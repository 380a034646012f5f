// Text from the model as it stands, one token at a time.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/tokenizer/tokenizer.h"
#include "worker/train/replica.h"

namespace telar::train {

// Continues spec.sample.prompt by spec.sample.tokens tokens drawn at spec.sample.temperature; stops at the end of a
// document. Special tokens that the prompt spells out count as such. Deterministic: draws are keyed by the run's seed.
// Without a tokenizer, ids separated by spaces. The whole prefix is computed anew for each token: meant for a look at a
// run's end, not for serving. Nothing when some rank's `stop` turned true before the last token; all ranks then stop
// behind the same one.
absl::StatusOr<std::optional<std::string>> generate(Replica& replica, const tokenizer::Tokenizer* tokenizer,
                                                    const std::atomic<bool>& stop);

}  // namespace telar::train
