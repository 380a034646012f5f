// Where the parts of resolve() put what they find wrong.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "worker/plan/resolve.h"

namespace telar::plan {

class Problems {
 public:
  // `field` without the "spec." in front.
  template <typename... Args>
  void add(const std::string& field, fmt::format_string<Args...> text, Args&&... args) {
    found_.push_back({"spec." + field, fmt::format(text, std::forward<Args>(args)...)});
  }
  // True when it is above zero; otherwise a problem is noted.
  template <typename T>
  bool positive(const std::string& field, T value) {
    if (value > 0) return true;
    add(field, "{} must be above 0", value);
    return false;
  }
  void within(const std::string& field, double value, double low, double high) {
    if (!(value >= low && value <= high)) add(field, "{} is not within [{}, {}]", value, low, high);
  }
  std::vector<SpecProblem> take() { return std::move(found_); }

 private:
  std::vector<SpecProblem> found_;
};

}  // namespace telar::plan
