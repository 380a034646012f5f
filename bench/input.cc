// Whether data is there when a step wants it: batches read ahead for a consumer that takes them at a fixed rate, as a
// device would. Shards of random tokens are written first, and dropped from the page cache where --cold.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/flags.h"
#include "worker/data/batch_loader.h"
#include "worker/data/llmc_format.h"
#include "worker/data/mixture.h"
#include "worker/data/split.h"

namespace telar::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: bench_input [--tokens-per-second N] [--batch N] [--seq N] [--steps N] [--million-tokens N] [--sources N]\n"
    "                   [--documents] [--cold] [--starts]\n"
    "--million-tokens: in each source. --documents: starts of documents, too. --cold: files are not in memory.\n"
    "--starts: instead, how long a start takes that holds out documents, without an index and with one.\n"
    "Last it reads without a pause: how fast it could be.\n";
constexpr uint16_t kEndOfDocument = 50256;
constexpr size_t kDocumentTokens = 600;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

absl::Status write_shard(const std::string& path, uint64_t tokens, uint64_t seed) {
  std::vector<uint16_t> ids(tokens);
  std::mt19937_64 random(seed);
  for (uint16_t& id : ids) id = static_cast<uint16_t>(random() % kEndOfDocument);
  for (size_t at = 0; at < ids.size(); at += 1 + random() % (2 * kDocumentTokens)) ids[at] = kEndOfDocument;
  std::vector<uint32_t> header(data::kLlmcHeaderBytes / 4);
  header[data::kLlmcMagicWord] = data::kLlmcMagicU16;
  header[data::kLlmcVersionWord] = data::kLlmcVersionU16;
  header[data::kLlmcTokensWord] = static_cast<uint32_t>(tokens);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(header.data()), data::kLlmcHeaderBytes);
  file.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * 2));
  if (!file.flush()) return absl::InternalError(path + ": could not be written");
  return absl::OkStatus();
}

void drop_from_memory(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  ::fsync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

struct Sizes {
  int64_t rate, batch, length, steps, million_tokens, sources;
};

absl::StatusOr<Sizes> sizes_of(const Flags& flags) {
  const auto rate = flags.number("tokens-per-second", 1000000, 1), batch = flags.number("batch", 128, 1),
             length = flags.number("seq", 1024, 1), steps = flags.number("steps", 80, 2),
             tokens = flags.number("million-tokens", 50, 1), sources = flags.number("sources", 1, 1);
  for (const auto* number : {&rate, &batch, &length, &steps, &tokens, &sources}) {
    if (!number->ok()) return number->status();
  }
  return Sizes{*rate, *batch, *length, *steps, *tokens, *sources};
}

struct Input {
  std::vector<std::unique_ptr<data::TokenSource>> tokens;
  std::vector<std::unique_ptr<data::Documents>> documents;
  std::optional<data::Mixture> mixture;
};

absl::StatusOr<Input> open_input(const std::string& folder, const Sizes& sizes, bool with_documents, bool cold) {
  Input input;
  std::vector<data::Sampler> samplers;
  std::vector<double> weights;
  for (int64_t i = 0; i < sizes.sources; ++i) {
    const std::string path = folder + "/" + std::to_string(i) + ".bin";
    absl::Status status =
        write_shard(path, static_cast<uint64_t>(sizes.million_tokens) * 1000000, 7 + static_cast<uint64_t>(i));
    if (!status.ok()) return status;
    auto source = data::open_llmc_bin({path}, 50257);
    if (!source.ok()) return source.status();
    input.tokens.push_back(*std::move(source));
    const data::Documents* documents = nullptr;
    if (with_documents) {
      auto found = input.tokens.back()->documents(kEndOfDocument);
      if (!found.ok()) return found.status();
      input.documents.push_back(*std::move(found));
      documents = input.documents.back().get();
    }
    if (cold) drop_from_memory(path);
    data::Section all(*input.tokens.back(), documents, {{0, input.tokens.back()->size()}});
    auto sampler = data::Sampler::shuffled(std::move(all), {.sequence_length = static_cast<uint32_t>(sizes.length)},
                                           static_cast<uint64_t>(i));
    if (!sampler.ok()) return sampler.status();
    samplers.push_back(*std::move(sampler));
    weights.push_back(static_cast<double>(i) + 1);
  }
  auto blend = data::Blend::create(weights);
  if (!blend.ok()) return blend.status();
  input.mixture.emplace(*std::move(blend), std::move(samplers));
  return input;
}

struct Took {
  double seconds = 0, waited = 0, longest = 0;
};
// Behind the first batch, which nothing could be read ahead of. step_seconds 0: without a pause.
absl::StatusOr<Took> take_all(const Input& input, const Sizes& sizes, double step_seconds) {
  auto loader = data::BatchLoader::start(*input.mixture, {.steps = static_cast<uint64_t>(sizes.steps),
                                                          .global_batch = static_cast<uint32_t>(sizes.batch),
                                                          .starts = !input.documents.empty()});
  if (!loader.ok()) return loader.status();
  Took took;
  Clock::time_point start, next;
  for (int64_t step = 0; step < sizes.steps; ++step) {
    const auto batch = (*loader)->next();
    if (!batch.ok()) return batch.status();
    if (step == 0) {
      start = next = Clock::now();
    } else {
      took.waited += batch->waited_seconds;
      took.longest = std::max(took.longest, batch->waited_seconds);
    }
    next = std::max(next, Clock::now()) +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(step_seconds));
    if (step_seconds > 0) std::this_thread::sleep_until(next);
  }
  took.seconds = seconds_since(start);
  return took;
}

// Where documents end in one shard, and which are held out.
absl::Status time_starts(const std::string& folder, const Sizes& sizes, bool cold) {
  const std::string path = folder + "/data.bin";
  absl::Status status = write_shard(path, static_cast<uint64_t>(sizes.million_tokens) * 1000000, 7);
  std::this_thread::sleep_for(std::chrono::seconds(3));  // An index that is as young as the data is not trusted.
  const data::IndexCache none, index(folder + "/index", "w");
  for (const auto& [what, cache] :
       {std::pair("without an index", &none), {"that makes one", &index}, {"with one", &index}}) {
    if (cold) drop_from_memory(path);
    const auto start = Clock::now();
    auto source = data::open_llmc_bin({path}, 50257);
    if (!source.ok()) return source.status();
    auto documents = (*source)->documents(kEndOfDocument, *cache);
    if (!documents.ok()) return documents.status();
    auto split = data::hold_out_documents(**source, **documents, 0.01, kEndOfDocument, *cache);
    if (!split.ok()) return split.status();
    fmt::print("a start {}: {:.3f} s for {} documents, {} ranges held out\n", what, seconds_since(start),
               (*documents)->count(), split->eval.size());
  }
  return status;
}

absl::Status measure(const Flags& flags, const std::string& folder) {
  const auto sizes = sizes_of(flags);
  if (!sizes.ok()) return sizes.status();
  if (flags.has("starts")) return time_starts(folder, *sizes, flags.has("cold"));
  const auto input = open_input(folder, *sizes, flags.has("documents"), flags.has("cold"));
  absl::Status status = input.status();
  if (status.ok()) {
    const double tokens = static_cast<double>(sizes->batch * sizes->length);
    const auto paced = take_all(*input, *sizes, tokens / static_cast<double>(sizes->rate));
    const auto free = take_all(*input, *sizes, 0);
    status.Update(paced.status());
    status.Update(free.status());
    if (status.ok()) {
      fmt::print("{:.0f} k tokens a step at {:.2f} M tokens/s: data wait {:.4f} % of {:.1f} s, longest {:.3f} ms\n",
                 tokens / 1e3, static_cast<double>(sizes->rate) / 1e6, 100 * paced->waited / paced->seconds,
                 paced->seconds, 1e3 * paced->longest);
      fmt::print("without a pause, from memory: {:.1f} M tokens/s\n",
                 tokens * static_cast<double>(sizes->steps - 1) / free->seconds / 1e6);
    }
  }
  return status;
}

absl::Status run(const Flags& flags) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("bench_input_" + std::to_string(::getpid()))).string();
  std::filesystem::create_directories(folder);
  const absl::Status status = measure(flags, folder);
  std::filesystem::remove_all(folder);
  return status;
}

}  // namespace
}  // namespace telar::bench

int main(int argc, char** argv) {
  const auto flags = telar::bench::Flags::parse(
      argc, argv, {"tokens-per-second", "batch", "seq", "steps", "million-tokens", "sources"},
      {"documents", "cold", "starts"});
  const absl::Status status = flags.ok() ? telar::bench::run(*flags) : flags.status();
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << status.message() << "\n" << telar::bench::kUsage;
  return EXIT_FAILURE;
}
