// The jobs that are measured: published model sizes with the batch that their peers are run with.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "telar/v1/spec.pb.h"

namespace telar::bench {

struct SpecRequest {
  std::string preset;  // One of preset_names() below.
  // 0: the preset's or the spec's.
  int64_t micro = 0;       // Sequences of a micro-batch.
  int64_t accumulate = 0;  // Micro-batches a step.
  int64_t sequence = 0;
  int64_t layers = 0;
  bool documents = false;  // Turns data.reset_at_documents on.
  // bf16, fp16, fp32, fp8 or with its recipe, such as fp8-delayed; empty: as the spec says, by default bf16 on a GPU
  // and fp32 on a CPU.
  std::string precision;
  bool gpu = false;
};

// gpt2-124m ..., the Llama-3-8B shape with 8 layers as llama3-8b, and small-gpt2, small-llama for tests.
std::vector<std::string> preset_names();

// Resolved, for one device. INVALID_ARGUMENT names what is unknown or what does not go together.
absl::StatusOr<v1::JobSpec> make_spec(const SpecRequest& request);

// The same of a spec from elsewhere: what `request` sets overrides its fields.
absl::Status adapt_spec(const SpecRequest& request, v1::JobSpec& spec);

}  // namespace telar::bench
