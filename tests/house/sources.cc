#include "tests/house/sources.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace telar::house {

namespace fs = std::filesystem;

std::vector<std::string> product_folders() { return {"common", "client", "server", "worker"}; }

std::vector<std::string> files_below(const fs::path& root, const std::vector<std::string>& folders,
                                     const std::vector<std::string>& extensions) {
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    if (!fs::is_directory(root / folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file()) continue;
      const std::string extension = entry.path().extension().string();
      if (std::find(extensions.begin(), extensions.end(), extension) == extensions.end()) continue;
      files.push_back(entry.path().lexically_relative(root).generic_string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream contents;
  contents << in.rdbuf();
  return contents.str();
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

fs::path tree_root() {
  const char* root = std::getenv("TELAR_SOURCE_DIR");
  return root == nullptr ? fs::current_path() : fs::path(root);
}

}  // namespace telar::house
