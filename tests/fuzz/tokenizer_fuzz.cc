// Tokenizer files of other people, and any text through them.
#include "tests/fuzz/input.h"
#include "worker/tokenizer/tokenizer.h"

using telar::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  telar::fuzz::Input input(data, size);
  const uint8_t mode = input.byte();
  const std::string text(input.take(input.byte()));
  const telar::fuzz::MemoryFile file(input.rest());
  telar::v1::TokenizerSpec spec;
  spec.set_path(file.path());
  static constexpr const char* kPatterns[] = {"gpt2", "cl100k", "o200k", "llama3"};
  switch (mode % 3) {
    case 0:
      spec.set_kind(telar::v1::TokenizerSpec::HUGGING_FACE);
      break;
    case 1:
      spec.set_kind(telar::v1::TokenizerSpec::TIKTOKEN);
      spec.set_pattern(kPatterns[mode / 3 % 4]);
      break;
    default:
      spec.set_kind(telar::v1::TokenizerSpec::SENTENCEPIECE);
  }
  const auto tokenizer = telar::tokenizer::open(spec);
  if (!tokenizer.ok()) return 0;
  const int32_t vocab = (*tokenizer)->vocab_size();
  require((*tokenizer)->end_of_document() < vocab, "the end of a document is a token");
  for (const bool special : {false, true}) {
    const auto ids = (*tokenizer)->encode(text, {.special_tokens = special, .template_tokens = special});
    for (const int32_t id : ids) require(id >= 0 && id < vocab, "ids are below the vocabulary");
    require((*tokenizer)->decode(ids, true).ok(), "what was encoded can be decoded");
  }
  require(!(*tokenizer)->decode(std::vector<int32_t>{vocab}).ok(), "a foreign id is refused");
  require(!(*tokenizer)->decode(std::vector<int32_t>{-1}).ok(), "so is a negative one");
  return 0;
}
