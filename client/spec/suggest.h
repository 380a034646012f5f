// The nearest name to a misspelt one.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"

namespace telar::client {

// Insertions, deletions, replacements and swaps of neighbours between two words (optimal string alignment).
int edit_distance(const std::string& a, const std::string& b);

// The candidate nearest to `word`, or "" when none is near. Case, '-' and '_' do not count.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

// "; did you mean 'batch.global'?" for an unknown key of `message`, found inside a spec of type `root`; or "".
// Looks among the message's own fields first, then for the same name anywhere in the spec.
std::string suggest_field(const std::string& key, const google::protobuf::Descriptor* message,
                          const google::protobuf::Descriptor* root);

}  // namespace telar::client
