// Rank files as tiktoken and Llama 3 have them: a token a line, its bytes in base64 and its rank, which is its id.
#include <fmt/format.h>

#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "worker/tokenizer/bpe_tokenizer.h"
#include "worker/tokenizer/pattern.h"
#include "worker/tokenizer/readers.h"

namespace telar::tokenizer {
namespace {

constexpr size_t kMostTokenBytes = 1024;

// What the files leave to the programs that read them. Names and ids as OpenAI and Meta publish them.
struct Encoding {
  std::string_view name;
  std::string_view pattern;
  size_t ranks;  // Only a file with so many has the special tokens below.
  std::vector<std::pair<std::string, int32_t>> special;
};

std::vector<std::pair<std::string, int32_t>> llama3_special() {
  static constexpr std::pair<std::string_view, int32_t> kNamed[] = {
      {"<|begin_of_text|>", 128000},   {"<|end_of_text|>", 128001},   {"<|finetune_right_pad_id|>", 128004},
      {"<|start_header_id|>", 128006}, {"<|end_header_id|>", 128007}, {"<|eom_id|>", 128008},
      {"<|eot_id|>", 128009},          {"<|python_tag|>", 128010},
  };
  std::vector<std::pair<std::string, int32_t>> special;
  const auto* named = std::begin(kNamed);
  int reserved = 0;
  for (int32_t id = 128000; id < 128256; ++id) {
    if (named != std::end(kNamed) && named->second == id) {
      special.emplace_back(named++->first, id);
    } else {
      special.emplace_back(fmt::format("<|reserved_special_token_{}|>", reserved++), id);
    }
  }
  return special;
}

const std::vector<Encoding>& encodings() {
  static const std::vector<Encoding> all = {
      {"gpt2", kGpt2Pattern, 50256, {{"<|endoftext|>", 50256}}},
      {"cl100k",
       kCl100kPattern,
       100256,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {"o200k", kO200kPattern, 199998, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
      {"llama3", kLlama3Pattern, 128000, llama3_special()},
  };
  return all;
}

class TiktokenReader {
 public:
  explicit TiktokenReader(const v1::TokenizerSpec& spec) : spec_(spec) {}

  absl::StatusOr<std::unique_ptr<Tokenizer>> open(std::string_view file) {
    if (auto status = ranks(file); !status.ok()) return status;
    if (auto status = merges(); !status.ok()) return status;
    if (auto status = pattern_and_special(); !status.ok()) return status;
    parts_.whole_words = true;
    return make_bpe_tokenizer(std::move(parts_));
  }

 private:
  template <typename... Args>
  absl::Status refused(fmt::format_string<Args...> text, Args&&... args) const {
    return refused_file(spec_, fmt::format(text, std::forward<Args>(args)...));
  }

  absl::Status ranks(std::string_view file) {
    for (size_t number = 1; !file.empty(); ++number) {
      const size_t end = std::min(file.find('\n'), file.size());
      std::string_view line = file.substr(0, end);
      file.remove_prefix(std::min(end + 1, file.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty()) continue;
      const size_t space = line.find(' ');
      std::string bytes;
      int32_t rank = 0;
      if (space == std::string_view::npos || !absl::Base64Unescape(absl::string_view(line.data(), space), &bytes) ||
          bytes.empty() ||
          !absl::SimpleAtoi(absl::string_view(line.data() + space + 1, line.size() - space - 1), &rank)) {
        return refused("line {}: not a token in base64, a space and its rank", number);
      }
      if (rank < 0 || rank >= kMostIds) return refused("line {}: rank {} is outside [0, {})", number, rank, kMostIds);
      if (bytes.size() > kMostTokenBytes) {
        return refused("line {}: a token of {} bytes; at most {} are supported", number, bytes.size(), kMostTokenBytes);
      }
      if (parts_.vocabulary.has(rank)) return refused("line {}: rank {} is there twice", number, rank);
      if (!parts_.words.emplace(bytes, rank).second) return refused("line {}: the token is there twice", number);
      parts_.vocabulary.add(rank, bytes, false);
    }
    parts_.texts = parts_.words;
    return absl::OkStatus();
  }

  // What two tokens make is a token: then they may be merged, those of the least rank first. So every cut of a token
  // into two tokens is a merge.
  absl::Status merges() {
    for (int byte = 0; byte < 256; ++byte) {
      const char text = static_cast<char>(byte);
      const auto found = parts_.words.find(std::string_view(&text, 1));
      if (found == parts_.words.end()) return refused("no token for byte 0x{:02X}", byte);
      parts_.byte_ids[byte] = found->second;
    }
    parts_.merges = Merges(parts_.words.size() * 2);
    for (const auto& [word, id] : parts_.words) {
      const std::string_view bytes = word;
      for (size_t cut = 1; cut < bytes.size(); ++cut) {
        const auto left = parts_.words.find(bytes.substr(0, cut));
        if (left == parts_.words.end()) continue;
        const auto right = parts_.words.find(bytes.substr(cut));
        if (right == parts_.words.end()) continue;
        parts_.merges.add(left->second, right->second, {static_cast<uint32_t>(id), id});
      }
    }
    return absl::OkStatus();
  }

  absl::Status pattern_and_special() {
    if (spec_.pattern().empty()) {
      return absl::InvalidArgumentError(
          "tokenizer.pattern: not given; use gpt2, cl100k, o200k, llama3 or a regular expression");
    }
    const Encoding* encoding = nullptr;
    for (const Encoding& known : encodings()) {
      if (known.name == spec_.pattern()) encoding = &known;
    }
    auto pattern = make_pattern(encoding ? encoding->pattern : spec_.pattern(), Dollar::kEndOfText);
    if (!pattern.ok()) {
      return absl::InvalidArgumentError("tokenizer.pattern: " + std::string(pattern.status().message()));
    }
    std::vector<Cutter::Step> steps(1);
    steps[0].pattern = *std::move(pattern);
    parts_.cutter = std::make_unique<Cutter>(std::move(steps));

    const bool known = encoding && spec_.special_tokens().empty() && encoding->ranks == parts_.words.size();
    if (known) {
      for (const auto& [text, id] : encoding->special) {
        if (auto status = special(text, id); !status.ok()) return status;
      }
    }
    const std::map<std::string, uint32_t> given(spec_.special_tokens().begin(), spec_.special_tokens().end());
    for (const auto& [text, id] : given) {
      if (auto status = special(text, id); !status.ok()) return status;
    }
    return end_of_document();
  }

  absl::Status end_of_document() {
    for (const std::string& name :
         {spec_.end_of_document(), std::string("<|endoftext|>"), std::string("<|end_of_text|>")}) {
      const auto end = parts_.texts.find(name);
      if (end != parts_.texts.end()) {
        parts_.end_of_document = end->second;
        parts_.vocabulary.make_special(end->second);
        break;
      }
      if (!name.empty() && name == spec_.end_of_document()) return unknown_end_of_document(spec_);
    }
    return absl::OkStatus();
  }

  absl::Status special(const std::string& text, int64_t id) {
    const std::string field = "tokenizer.special_tokens[" + text + "]: ";
    if (text.empty()) return absl::InvalidArgumentError(field + "empty text");
    if (id < 0 || id >= kMostIds) {
      return absl::InvalidArgumentError(fmt::format("{}id {} is not below {}", field, id, kMostIds));
    }
    const auto token = static_cast<int32_t>(id);
    if (parts_.vocabulary.has(token)) {
      return absl::InvalidArgumentError(fmt::format("{}id {} is that of another token already", field, id));
    }
    if (!parts_.texts.emplace(text, token).second) {
      return absl::InvalidArgumentError(field + "a token of the file has this text");
    }
    parts_.vocabulary.add(token, text, true);
    parts_.added_as_written.push_back({.id = token, .text = text, .special = true});
    return absl::OkStatus();
  }

  const v1::TokenizerSpec& spec_;
  BpeParts parts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> open_tiktoken(const v1::TokenizerSpec& spec) {
  const auto file = read_tokenizer_file(spec.path());
  if (!file.ok()) return file.status();
  return TiktokenReader(spec).open(*file);
}

}  // namespace telar::tokenizer
