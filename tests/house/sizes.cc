#include "tests/house/sizes.h"

#include <algorithm>
#include <cctype>
#include <regex>
#include <sstream>

#include "tests/house/sources.h"

namespace telar::house {
namespace {

// Replaces comments, literals and preprocessor lines by blanks; line breaks stay.
class Blanker {
 public:
  explicit Blanker(std::string_view text) : text_(text) {}

  std::string blank() && {
    while (at_ < text_.size()) step();
    return std::move(out_);
  }

 private:
  bool sees(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
  void skip(size_t to) {
    for (to = std::min(to, text_.size()); at_ < to; ++at_) out_ += text_[at_] == '\n' ? '\n' : ' ';
  }
  size_t end_of(std::string_view what, size_t from) const {
    const size_t found = text_.find(what, from);
    return found == std::string_view::npos ? text_.size() : found + what.size();
  }
  bool follows_word() const { return at_ > 0 && (std::isalnum(text_[at_ - 1]) != 0 || text_[at_ - 1] == '_'); }

  size_t end_of_quoted(char quote) const {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote && text_[end] != '\n') end += text_[end] == '\\' ? 2 : 1;
    return end + 1;
  }
  size_t end_of_directive() const {
    size_t end = at_;
    do {
      end = end_of("\n", end);
    } while (end < text_.size() && end >= 2 && text_[end - 2] == '\\');
    return end;
  }
  bool starts_line() const {
    const size_t last = out_.find_last_not_of(" \t");
    return last == std::string::npos || out_[last] == '\n';
  }

  void step() {
    if (sees("//")) {
      skip(text_.find('\n', at_));
    } else if (sees("/*")) {
      skip(end_of("*/", at_ + 2));
    } else if (sees("R\"")) {
      const size_t open = text_.find('(', at_);
      skip(end_of(")" + std::string(text_.substr(at_ + 2, open - at_ - 2)) + "\"", open));
    } else if (sees("\"")) {
      skip(end_of_quoted('"'));
    } else if (sees("'") && !follows_word()) {  // After a word it separates digits.
      skip(end_of_quoted('\''));
    } else if (sees("#") && starts_line()) {
      skip(end_of_directive());
    } else {
      out_ += text_[at_++];
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string out_;
};

// What stands before a brace, since the last statement or brace, without template<...>.
std::string trimmed(std::string head) {
  static const std::regex spaces(R"(\s+)");
  head = std::regex_replace(head, spaces, " ");
  const size_t first = head.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  head = head.substr(first, head.find_last_not_of(' ') - first + 1);
  if (head.rfind("template", 0) != 0) return head;
  int depth = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    if (head[i] == '<') ++depth;
    if (head[i] == '>' && --depth == 0) return trimmed(head.substr(i + 1));
  }
  return head;
}

bool opens_function(const std::string& head) {
  static const std::regex scope(R"(^(inline namespace|namespace|class|struct|union|enum|extern)\b.*)");
  if (head.empty() || head.back() == '=' || head.find('(') == std::string::npos) return false;
  return !std::regex_match(head, scope);
}

std::string name_in(const std::string& head) {
  static const std::regex test(R"((TEST(_F|_P)?|TYPED_TEST|BENCHMARK\w*)\s*\([^)]*\))");
  static const std::regex lambda(R"((\w+)\s*=\s*\[)");
  static const std::regex name(R"(([A-Za-z_~][\w:~]*|operator\s*[^\s(]+)\s*\()");
  std::smatch match;
  if (std::regex_search(head, match, test)) return match[0];
  if (std::regex_search(head, match, lambda)) return match[1];
  return std::regex_search(head, match, name) ? match[1].str() : head;
}

}  // namespace

std::vector<Function> functions_of(std::string_view text) {
  const std::string code = Blanker(text).blank();
  std::vector<Function> functions;
  std::string head;
  int line = 1;
  int parentheses = 0;
  int depth_in_function = 0;  // Open braces since a function began; 0 outside of one.
  for (const char c : code) {
    if (c == '\n') ++line;
    if (depth_in_function > 0) {
      if (c == '{') ++depth_in_function;
      if (c == '}' && --depth_in_function == 0) functions.back().lines = line - functions.back().line + 1;
      continue;
    }
    if (c == '(') ++parentheses;
    if (c == ')') --parentheses;
    if (c == '{' && parentheses == 0) {
      head = trimmed(head);
      if (opens_function(head)) {
        functions.push_back({.name = name_in(head), .line = line});
        depth_in_function = 1;
      }
    }
    const bool ends_head = parentheses == 0 && (c == '{' || c == '}' || c == ';');
    head = ends_head ? "" : head + c;
  }
  return functions;
}

Exceptions::Exceptions(std::string_view text) {
  for (std::string line : lines_of(text)) {
    line = line.substr(0, line.find('#'));
    std::istringstream words(line);
    std::string what, reason;
    int limit = 0;
    if (!(words >> what)) continue;
    if (!(words >> limit >> reason)) {
      problems_.push_back("exceptions.txt: \"" + line + "\" is not \"path[:function] limit reason\"");
      continue;
    }
    limits_[what] = limit;
  }
}

int Exceptions::limit(const std::string& what, int usual) const {
  const auto found = limits_.find(what);
  return found == limits_.end() ? usual : found->second;
}

std::vector<std::string> Exceptions::unused() const {
  std::vector<std::string> names;
  for (const auto& [what, limit] : limits_) {
    if (uses_.count(what) == 0) names.push_back("exceptions.txt: " + what + " needs no exception any more");
  }
  return names;
}

std::vector<std::string> check_sizes(Exceptions& exceptions, const std::string& path, std::string_view text) {
  std::vector<std::string> violations;
  const auto check = [&](const std::string& what, const std::string& where, int lines, int stop) {
    if (lines <= stop) return;
    exceptions.used(what);
    const int limit = exceptions.limit(what, stop);
    if (lines > limit) {
      violations.push_back(where + ": has " + std::to_string(lines) + " lines, stop " + std::to_string(limit));
    }
  };
  const bool is_header = path.ends_with(".h") || path.ends_with(".cuh");
  check(path, path, static_cast<int>(std::count(text.begin(), text.end(), '\n')),
        is_header ? kHeaderStop : kSourceStop);
  static const std::regex kernels("^worker/backend/(cpu|cuda)/.*");
  const int stop = std::regex_match(path, kernels) ? kKernelStop : kFunctionStop;
  for (const Function& function : functions_of(text)) {
    check(path + ":" + function.name, path + ":" + std::to_string(function.line) + ": " + function.name, function.lines,
          stop);
  }
  return violations;
}

}  // namespace telar::house
