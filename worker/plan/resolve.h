// A user's spec made complete, and everything that is wrong with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "telar/v1/spec.pb.h"

namespace telar::plan {

struct SpecProblem {
  std::string field;        // "spec.batch.global"
  std::string description;  // Value, rule and the nearest fix, in one line.
};

// Fills every default of `spec` in (presets first), then checks it. Pure: reads no file, knows no cluster.
// `default_kind` is what resources.kind becomes when unset. Returns all problems, enum numbers without a name first,
// then in field order; empty = valid. Idempotent: resolving a resolved spec changes nothing.
std::vector<SpecProblem> resolve(v1::JobSpec& spec, v1::ResourceSpec::Kind default_kind);

// What resolve() says of the fields of a spec's `scheduling` that may be changed later.
std::vector<SpecProblem> check_scheduling(const v1::SchedulingSpec& scheduling);

// What is wrong with spec.array of a spec that is not taken apart into tasks yet, before any of these is resolved.
std::vector<SpecProblem> check_array(const v1::JobSpec& spec);

// Logical parameters of a resolved spec's model; a tied head counts once.
uint64_t parameter_count(const v1::ModelSpec& model);

// Model FLOPs a token, forward and backward: 6 P + 6 L H d T, with P the matrix parameters including the output head
// and without the input embedding, causal attention counted once, recompute not counted.
double flops_per_token(const v1::ModelSpec& model, uint32_t sequence_length);

// Of those FLOPs, the part that runs in FP8; 0 unless precision.compute is fp8. Of a resolved spec.
double fp8_flops_share(const v1::JobSpec& spec);

}  // namespace telar::plan
