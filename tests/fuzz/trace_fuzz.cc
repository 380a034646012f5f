// Traces that ranks of a gang wrote, made one; and whatever else lies under such names.
//
// An input is a byte for how many steps are wanted, then files: two bytes for each's length, then its text.
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/output/trace.h"
#include "tests/fuzz/input.h"

using telar::fuzz::require;

namespace {

constexpr int kMostFiles = 8;

bool is_json(const std::string& text) { return nlohmann::json::accept(text); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  telar::fuzz::Input input(data, size);
  const uint8_t mode = input.byte();
  telar::client::TraceSet set(mode % 3, 1 + mode / 3 % 3);
  if (mode % 2 == 0) set.only_epoch(mode % 5);
  for (int i = 0; i < kMostFiles && !input.empty(); ++i) {
    const auto length = input.half();
    (void)set.add(absl::StrCat("rank-", i), std::string(input.take(length)));
  }
  if (!set.join().ok()) return 0;
  std::ostringstream out;
  set.write(out);
  require(is_json(out.str()), "the joined trace is JSON");
  require(is_json(set.figures()), "the figures are JSON");
  (void)set.tables(/*wide=*/true, /*header=*/true);
  require(set.line().find('\n') == std::string::npos, "the line is one");
  return 0;
}
