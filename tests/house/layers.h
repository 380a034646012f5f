// Who may include whom: cmake/layers.txt against the #include lines of the product's code.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace telar::house {

class Layers {
 public:
  // Reads lines "A: B C"; '#' starts a comment. A line of another form, or a second line for A, lands in problems().
  explicit Layers(std::string_view text);

  // What is wrong with the file itself, a cycle of arrows included.
  const std::vector<std::string>& problems() const { return problems_; }

  // The layer of a file in `folder`: the longest name that is `folder` or above it. Empty if there is none, or if that
  // layer is split into listed sub-folders of which `folder` is not one.
  std::string layer_of(const std::string& folder) const;
  bool allows(const std::string& from, const std::string& to) const;

 private:
  void find_cycles();

  std::map<std::string, std::set<std::string>> arrows_;
  std::vector<std::string> problems_;
};

// The violations of one file, each "path:line: what". `path` is relative to the root of the tree.
std::vector<std::string> check_includes(const Layers& layers, const std::string& path, std::string_view text);

}  // namespace telar::house
