#include "worker/tokenizer/tokenizer.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/roots.h"
#include "worker/tokenizer/kind.h"
#include "worker/tokenizer/readers.h"
#include "worker/tokenizer/unicode.h"

namespace telar::tokenizer {

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  do_encode(text, options, ids);
  return ids;
}

std::string Tokenizer::name_of(int32_t id) const {
  const auto bytes = decode(std::span(&id, 1), true);
  if (!bytes.ok() || bytes->empty()) return absl::StrCat("<", id, ">");
  return printable(*bytes);
}

absl::StatusOr<std::string> read_tokenizer_file(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("tokenizer file ", path));
  if (!S_ISREG(about.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer file ", path, ": not a regular file"));
  }
  if (static_cast<uint64_t>(about.st_size) > kMostFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer file ", path, ": ", about.st_size, " bytes; at most ",
                                                   kMostFileBytes, " are supported"));
  }
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("tokenizer file ", path));
  if (absl::Status status = process_roots().check_open(fileno(file.get()), path); !status.ok()) return status;
  std::string text(static_cast<size_t>(about.st_size), '\0');
  if (std::fread(text.data(), 1, text.size(), file.get()) != text.size())
    return absl::DataLossError(absl::StrCat("tokenizer file ", path, ": cannot be read"));
  return text;
}

absl::Status refused_file(const v1::TokenizerSpec& spec, const std::string& why) {
  constexpr size_t kMost = 400;
  std::string line = printable(std::string_view(why).substr(0, kMost));
  if (why.size() > kMost) line += "...";
  return absl::InvalidArgumentError(absl::StrCat("tokenizer file ", spec.path(), ": ", line));
}

absl::Status unknown_end_of_document(const v1::TokenizerSpec& spec) {
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer.end_of_document: '", spec.end_of_document(), "' is no token of ", spec.path()));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> open(const v1::TokenizerSpec& spec) {
  switch (spec.kind() == v1::TokenizerSpec::KIND_UNSPECIFIED ? kind_of(spec.path()) : spec.kind()) {
    case v1::TokenizerSpec::BYTE: {
      auto bytes = make_byte_tokenizer();
      if (spec.end_of_document().empty() || bytes->find(spec.end_of_document()) == kByteEndOfDocument) return bytes;
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.end_of_document: '", spec.end_of_document(),
                                                     "' is not that of the byte tokenizer, <|endoftext|>"));
    }
    case v1::TokenizerSpec::HUGGING_FACE:
      return open_hugging_face(spec);
    case v1::TokenizerSpec::TIKTOKEN:
      return open_tiktoken(spec);
    case v1::TokenizerSpec::SENTENCEPIECE:
      return open_sentencepiece(spec);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.kind: none, and ", spec.path().empty() ? "no path" : spec.path(),
                       " does not tell; use byte, hugging_face, tiktoken or sentencepiece"));
  }
}

}  // namespace telar::tokenizer
