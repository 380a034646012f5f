// Stops on the length of files and functions, and the list of exceptions to them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace telar::house {

// Lines that no file or function may exceed.
inline constexpr int kHeaderStop = 250;
inline constexpr int kSourceStop = 600;
inline constexpr int kFunctionStop = 80;
inline constexpr int kKernelStop = 120;  // Functions in worker/backend/cpu and worker/backend/cuda.

struct Function {
  std::string name;  // As written before the parameters; TEST(Suite, Name) with its arguments.
  int line = 0;      // Of the opening brace.
  int lines = 0;     // From the opening to the closing brace, both counted.
};

// The outermost functions and lambdas of C++ text, found by their braces: no compiler needed, so no build either. Knows
// comments, strings, raw strings and preprocessor lines. A constructor's brace initializers count as functions of
// their own, which does no harm: they are short.
std::vector<Function> functions_of(std::string_view text);

// Lines "path[:function] limit reason". A file or function may then have `limit` lines.
class Exceptions {
 public:
  explicit Exceptions(std::string_view text);
  // Lines without a limit or without a reason.
  const std::vector<std::string>& problems() const { return problems_; }
  // The limit in force for `what` ("path" or "path:function").
  int limit(const std::string& what, int usual) const;
  // Names the exceptions that `limit` was never asked for with a size above the usual: the list only shrinks.
  std::vector<std::string> unused() const;
  void used(const std::string& what) { ++uses_[what]; }

 private:
  std::map<std::string, int> limits_;
  std::map<std::string, int> uses_;
  std::vector<std::string> problems_;
};

// The violations of one file, each "path[:function] ...: has N lines, stop M".
std::vector<std::string> check_sizes(Exceptions& exceptions, const std::string& path, std::string_view text);

}  // namespace telar::house
