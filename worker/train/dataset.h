// The run's text: what is trained on, what is held out, and how ids become text again.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/rank.pb.h"
#include "telar/v1/spec.pb.h"
#include "worker/data/index_cache.h"
#include "worker/data/mixture.h"
#include "worker/data/token_source.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::train {

// What an evaluation reads of one source: its first samples.
struct EvalPart {
  std::string source;
  data::Sampler rows;
  uint64_t samples = 0;
};

struct Dataset {
  // Files, and where documents end in them where that is asked for.
  struct Opened {
    std::unique_ptr<data::TokenSource> tokens;
    std::unique_ptr<data::Documents> documents;
  };
  std::vector<Opened> opened;          // The samplers below read from these.
  std::optional<data::Mixture> train;  // train->consumed(samples) says how far the run is in each source by then.
  std::vector<EvalPart> eval;          // A source each.
  std::vector<v1::SourceReport> sources;
  bool named = false;  // The spec names its sources.
  uint64_t train_tokens = 0;
  uint64_t eval_tokens = 0;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;  // Null when the data is ids already.
};

// Errors are of class DATA and name the file, and the source where there are several; one of them is a model.vocab
// below the tokenizer's.
// `cache` may remember what it takes reading all of the data to know.
absl::StatusOr<Dataset> open_dataset(const v1::JobSpec& spec, const data::IndexCache& cache = data::IndexCache());

}  // namespace telar::train
