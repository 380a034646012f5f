// How fast text becomes tokens: MB/s of a file by tokenizer and number of threads.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "bench/flags.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::bench {
namespace {

constexpr const char* kUsage =
    "usage: bench_tokenize --text FILE --tokenizer FILE[,FILE...] [--pattern NAME] [--threads N] [--repeat N]\n"
    "--pattern: for tiktoken files. The text is taken a line at a time, or with --whole at once; the best of "
    "--repeat.\n";

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Parts of `text` that end at line breaks: one a line, or about `parts` of them.
std::vector<std::string_view> cut(std::string_view text, size_t parts) {
  std::vector<std::string_view> out;
  const size_t least = parts == 0 ? 1 : text.size() / parts + 1;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n', std::min(least - 1, text.size() - 1)), text.size() - 1) + 1;
    out.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return out;
}

struct Speed {
  double seconds = 0;
  size_t tokens = 0;
};

// Thread i takes documents i, i + threads, ...
Speed time_once(const tokenizer::Tokenizer& tokenizer, const std::vector<std::string_view>& documents, size_t threads) {
  std::vector<size_t> tokens(threads);
  const double start = seconds();
  std::vector<std::thread> workers;
  for (size_t worker = 0; worker < threads; ++worker) {
    workers.emplace_back([&, worker] {
      std::vector<int32_t> ids;
      size_t count = 0;
      for (size_t at = worker; at < documents.size(); at += threads) {
        ids.clear();
        tokenizer.append(documents[at], {}, ids);
        count += ids.size();
      }
      tokens[worker] = count;
    });
  }
  for (std::thread& worker : workers) worker.join();
  Speed speed{seconds() - start, 0};
  for (const size_t count : tokens) speed.tokens += count;
  return speed;
}

absl::Status run(const Flags& flags) {
  const auto most = flags.number("threads", std::thread::hardware_concurrency(), 1);
  const auto repeat = flags.number("repeat", 5, 1);
  for (const auto* number : {&most, &repeat}) {
    if (!number->ok()) return number->status();
  }
  std::ifstream file(flags.text("text", ""), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) return absl::NotFoundError("--text: no file, or an empty one");
  fmt::print("{:>8} {:>9} {:>9} {:>12}  tokenizer\n", "threads", "MB/s", "bytes/tok", "open ms");
  for (const std::string& path : std::vector<std::string>(absl::StrSplit(flags.text("tokenizer", ""), ','))) {
    v1::TokenizerSpec spec;
    spec.set_path(path);
    spec.set_pattern(flags.text("pattern", ""));
    if (path == "byte") spec.set_kind(v1::TokenizerSpec::BYTE);
    if (!flags.text("pattern", "").empty()) spec.set_kind(v1::TokenizerSpec::TIKTOKEN);
    const double start = seconds();
    const auto tokenizer = tokenizer::open(spec);
    if (!tokenizer.ok()) return tokenizer.status();
    const double opened = seconds() - start;
    for (int64_t threads = 1; threads <= *most; threads *= 2) {
      const auto documents = cut(text, flags.has("whole") ? static_cast<size_t>(threads) : 0);
      Speed best{1e30, 0};
      for (int64_t turn = 0; turn < *repeat; ++turn) {
        const Speed speed = time_once(**tokenizer, documents, static_cast<size_t>(threads));
        if (speed.seconds < best.seconds) best = speed;
      }
      fmt::print("{:>8} {:>9.1f} {:>9.2f} {:>12.0f}  {}\n", threads,
                 static_cast<double>(text.size()) / best.seconds / 1e6,
                 static_cast<double>(text.size()) / static_cast<double>(best.tokens), opened * 1e3, path);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace telar::bench

int main(int argc, char** argv) {
  const auto flags =
      telar::bench::Flags::parse(argc, argv, {"text", "tokenizer", "pattern", "threads", "repeat"}, {"whole"});
  const absl::Status status = flags.ok() ? telar::bench::run(*flags) : flags.status();
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << status.message() << "\n" << telar::bench::kUsage;
  return EXIT_FAILURE;
}
