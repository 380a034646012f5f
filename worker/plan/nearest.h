// What was meant by a name that is not known.
#pragma once

#include <string>
#include <vector>

namespace telar::plan {

// The candidate with the fewest insertions, deletions and replacements away; the first of equals. `candidates` is not
// empty.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace telar::plan
