// What tells tokenizers apart.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace telar::data {

// SHA-256 of the parts one behind the other, in lower-case hex.
std::string sha256(const std::vector<std::string_view>& parts);

}  // namespace telar::data
