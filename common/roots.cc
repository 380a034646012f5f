#include "common/roots.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace telar {
namespace {

constexpr const char* kVariable = "TELAR_ALLOWED_ROOTS";

std::string normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

bool below(const std::string& path, const std::string& root) {
  return root == "/" || path == root || path.rfind(root + "/", 0) == 0;
}

bool below_any(const std::string& path, const std::vector<std::string>& roots) {
  return std::any_of(roots.begin(), roots.end(), [&](const std::string& root) { return below(path, root); });
}

}  // namespace

Roots::Roots(const std::vector<std::string>& roots) {
  for (const std::string& root : roots) {
    roots_.push_back(normal(root));
    std::error_code problem;
    const auto real = std::filesystem::canonical(root, problem);
    real_.push_back(problem ? roots_.back() : real.string());
  }
}

std::string Roots::problem(const std::string& path) const {
  if (roots_.empty() || path.empty()) return "";
  const std::string allowed = absl::StrJoin(roots_, ", ");
  const size_t wildcard = path.find_first_of("*?[");
  if (wildcard != std::string::npos && absl::StrCat(path, "/").find("/../", wildcard) != std::string::npos) {
    return absl::StrCat("'", path, "' has '..' behind a wildcard");
  }
  if (path.front() == '/' && below_any(normal(path), roots_)) return "";
  return absl::StrCat("'", path, "' is not below an allowed root; allowed: ", allowed);
}

absl::Status Roots::check_open(int file, const std::string& path) const {
  if (roots_.empty()) return absl::OkStatus();
  std::array<char, PATH_MAX> place;
  const ssize_t size = readlink(absl::StrCat("/proc/self/fd/", file).c_str(), place.data(), place.size());
  const std::string real(place.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  if (size > 0 && below_any(real, real_)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(path, " is ", real.empty() ? "at an unknown place" : real,
                   ", which is not below an allowed root; allowed: ", absl::StrJoin(roots_, ", ")));
}

const Roots& process_roots() {
  static const Roots kRoots = [] {
    const char* value = std::getenv(kVariable);
    if (value == nullptr || *value == '\0') return Roots();
    return Roots(std::vector<std::string>(absl::StrSplit(value, ':', absl::SkipEmpty())));
  }();
  return kRoots;
}

void roots_to_environment(const std::vector<std::string>& roots) {
  setenv(kVariable, absl::StrJoin(roots, ":").c_str(), 1);
}

}  // namespace telar
