// Kernels that may take another's place, until a GPU has decided: docs/performance.md says what each should gain.
#pragma once

#include <cstdlib>
#include <string_view>

namespace telar::backend::cuda {

// Whether TELAR_CANDIDATES in the environment, "all" or names with commas between them, has `name`.
inline bool is_candidate(std::string_view name) {
  const char* const chosen = std::getenv("TELAR_CANDIDATES");
  if (chosen == nullptr) return false;
  std::string_view rest = chosen;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    if (one == name || one == "all") return true;
    rest.remove_prefix(one.size() == rest.size() ? one.size() : one.size() + 1);
  }
  return false;
}

}  // namespace telar::backend::cuda
