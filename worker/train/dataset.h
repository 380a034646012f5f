// The run's text: what is trained on, what is held out, and how ids become text again.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"
#include "worker/data/sampler.h"
#include "worker/data/token_source.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::train {

struct Dataset {
  std::unique_ptr<data::TokenSource> train_source;
  std::unique_ptr<data::TokenSource> eval_source;  // Null when the eval windows are the tail of train_source.
  std::optional<data::Sampler> train;
  std::optional<data::Sampler> eval;
  uint64_t train_tokens = 0;
  uint64_t eval_tokens = 0;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;  // Null when the data is ids already.
};

// Errors are of class DATA and name the file; one of them is a model.vocab below the tokenizer's.
absl::StatusOr<Dataset> open_dataset(const v1::JobSpec& spec);

}  // namespace telar::train
