// The source files of a tree, and the two things that every house test does to them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace telar::house {

// The folders whose rules are strictest: what is built into the programs.
std::vector<std::string> product_folders();

// Paths relative to `root`, sorted, of the files below `folders` whose extension is among `extensions` (".h", ...).
// A folder that does not exist holds no files.
std::vector<std::string> files_below(const std::filesystem::path& root, const std::vector<std::string>& folders,
                                     const std::vector<std::string>& extensions);

// Whole contents; empty if the file cannot be read.
std::string read_file(const std::filesystem::path& path);

std::vector<std::string> lines_of(std::string_view text);

// One line each, for a test's failure message.
std::string joined(const std::vector<std::string>& lines);

// TELAR_SOURCE_DIR, which telar_test puts into the environment.
std::filesystem::path tree_root();

}  // namespace telar::house
