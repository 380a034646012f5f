#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/house/sizes.h"
#include "tests/house/sources.h"

namespace telar::house {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string lines(int count, const std::string& line) {
  std::string text;
  for (int i = 0; i < count; ++i) text += line + "\n";
  return text;
}

std::vector<std::string> check(const std::string& path, const std::string& text, const std::string& exceptions = "") {
  Exceptions list(exceptions);
  return check_sizes(list, path, text);
}

TEST(Size, TheTreeKeepsTheStops) {
  std::vector<std::string> folders = product_folders();
  folders.insert(folders.end(), {"tests", "bench"});
  Exceptions exceptions(read_file(tree_root() / "tests/house/exceptions.txt"));
  std::vector<std::string> violations = exceptions.problems();
  size_t functions = 0;
  for (const std::string& file : files_below(tree_root(), folders, {".h", ".cc", ".cu", ".cuh"})) {
    const std::string text = read_file(tree_root() / file);
    functions += functions_of(text).size();
    for (std::string& violation : check_sizes(exceptions, file, text)) violations.push_back(std::move(violation));
  }
  for (std::string& name : exceptions.unused()) violations.push_back(std::move(name));
  EXPECT_GT(functions, 50u) << "the scanner finds no functions below " << tree_root();
  EXPECT_THAT(violations, IsEmpty()) << joined(violations);
}

TEST(Size, FindsALongFile) {
  EXPECT_THAT(check("common/x.h", lines(250, "// x")), IsEmpty());
  EXPECT_THAT(check("common/x.h", lines(251, "// x")), ElementsAre("common/x.h: has 251 lines, stop 250"));
  EXPECT_THAT(check("common/x.cc", lines(600, "// x")), IsEmpty());
  EXPECT_THAT(check("common/x.cc", lines(601, "// x")), ElementsAre(HasSubstr("601 lines, stop 600")));
  EXPECT_THAT(check("worker/backend/cuda/x.cu", lines(601, "")), ElementsAre(HasSubstr("601 lines, stop 600")));
}

TEST(Size, FindsALongFunction) {
  const auto function = [](int length) {
    std::string text = "int f(int a) {\n";
    text += lines(length - 2, "  ++a;");
    return text + "}\n";
  };
  EXPECT_THAT(check("common/x.cc", function(80)), IsEmpty());
  EXPECT_THAT(check("common/x.cc", std::string("\n") + function(81)),
              ElementsAre("common/x.cc:2: f: has 81 lines, stop 80"));
  EXPECT_THAT(check("worker/backend/cpu/x.cc", function(120)), IsEmpty());
  EXPECT_THAT(check("worker/backend/cpu/x.cc", function(121)), ElementsAre(HasSubstr("stop 120")));
  EXPECT_THAT(check("worker/backend/x.cc", function(81)), ElementsAre(HasSubstr("stop 80")));
}

TEST(Size, AnExceptionNeedsALimitAndAReason) {
  std::string text = "void f() {\n";
  text += lines(98, "  g();");
  text += "}\n";
  EXPECT_THAT(check("common/x.cc", text, "common/x.cc:f 100 one table, shorter in one piece"), IsEmpty());
  EXPECT_THAT(check("common/x.cc", text, "common/x.cc:f 99 too low"), ElementsAre(HasSubstr("stop 99")));
  EXPECT_THAT(check("common/x.cc", text, "common/x.cc:g 100 another"), ElementsAre(HasSubstr("stop 80")));
  EXPECT_THAT(Exceptions("common/x.cc:f 100\n").problems(), ElementsAre(HasSubstr("limit reason")));
  EXPECT_THAT(Exceptions("common/x.cc because\n").problems(), ElementsAre(HasSubstr("limit reason")));
  EXPECT_THAT(Exceptions("# a comment\n\n").problems(), IsEmpty());
}

TEST(Size, AnExceptionThatNothingNeedsIsAViolation) {
  Exceptions exceptions("common/x.cc:f 100 it was long once\n");
  EXPECT_THAT(check_sizes(exceptions, "common/x.cc", "void f() {}\n"), IsEmpty());
  EXPECT_THAT(exceptions.unused(), ElementsAre(HasSubstr("common/x.cc:f needs no exception")));
}

TEST(Size, ScannerKnowsFunctionsFromOtherBraces) {
  const char* text = R"code(#define OPEN(x) { \
  {
namespace a { class __attribute__((packed)) B final : public C {
  B() : x_(1) { f(); }
  int get() const override {
    const char* brace = "}";  // }
    char c = '}'; long n = 1'000;
    return R"(}})"[0] + c + n;  /* } */
  }
  enum class E { kA, kB };
  std::vector<int> v_{1, 2};
};
template <typename T, int N = f(3)>
auto sum(const T& x = {}) -> decltype(x + 1) {
  for (;;) { if (x) { break; } }
}
const int kTable[] = {1, 2};
const auto kLambda = [](int i) { return i; };
bool operator==(const B& l, const B& r) { return true; }
TEST_F(Suite, Name) {
}
}
)code";
  std::vector<std::string> seen;
  for (const Function& f : functions_of(text)) {
    seen.push_back(f.name + "@" + std::to_string(f.line) + "+" + std::to_string(f.lines));
  }
  EXPECT_THAT(
      seen, ElementsAre("B@4+1", "get@5+5", "sum@14+3", "kLambda@18+1", "operator==@19+1", "TEST_F(Suite, Name)@20+2"));
}

}  // namespace
}  // namespace telar::house
