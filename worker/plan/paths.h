// Every path that a spec names.
#pragma once

#include <string>
#include <vector>

#include "telar/v1/spec.pb.h"

namespace telar::plan {

struct SpecPath {
  std::string field;  // "data.sources[1].train[0]"
  std::string path;   // As written; of `data` it may be a glob.
};
// Of data, tokenizer and checkpoint; empty ones are left out.
std::vector<SpecPath> paths_of(const v1::JobSpec& spec);

}  // namespace telar::plan
