// Words that mean "not finished" have no place in what we ship.
#include <regex>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/house/sources.h"

namespace telar::house {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> check_words(const std::string& path, const std::string& text) {
  static const std::regex unfinished(R"(\b(TODO|FIXME|XXX|HACK)\b)");
  std::vector<std::string> violations;
  int number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    std::smatch match;
    if (std::regex_search(line, match, unfinished)) {
      violations.push_back(path + ":" + std::to_string(number) + ": " + match.str());
    }
  }
  return violations;
}

TEST(Words, TheTreeIsFinished) {
  std::vector<std::string> folders = product_folders();
  folders.insert(folders.end(), {"proto", "cmake", "deploy"});
  const std::vector<std::string> files = files_below(
      tree_root(), folders,
      {".h", ".cc", ".cu", ".cuh", ".in", ".proto", ".cmake", ".txt", ".sh", ".yaml", ".yml", ".json", ".service"});
  ASSERT_GT(files.size(), 20u) << "no tree at " << tree_root();
  std::vector<std::string> violations;
  for (const std::string& file : files) {
    for (std::string& violation : check_words(file, read_file(tree_root() / file))) {
      violations.push_back(std::move(violation));
    }
  }
  EXPECT_THAT(violations, IsEmpty()) << joined(violations);
}

TEST(Words, PlantedOnesAreFound) {
  EXPECT_THAT(check_words("a.h", "int x;\n// TODO(me): y\nFIXME\n"), ElementsAre("a.h:2: TODO", "a.h:3: FIXME"));
  EXPECT_THAT(check_words("a.h", "// HACK\n"), ElementsAre("a.h:1: HACK"));
  EXPECT_THAT(check_words("a.h", "// a hackneyed todo list, AUTODOC\n"), IsEmpty());
}

}  // namespace
}  // namespace telar::house
