// Byte-level byte pair encoding: what tokenizer.json and tiktoken files come to.
#pragma once

#include <memory>
#include <vector>

#include "worker/tokenizer/added_tokens.h"
#include "worker/tokenizer/cutter.h"
#include "worker/tokenizer/merges.h"
#include "worker/tokenizer/tokenizer.h"
#include "worker/tokenizer/vocabulary.h"

namespace telar::tokenizer {

struct BpeParts {
  Vocabulary vocabulary;
  int32_t byte_ids[256];  // The token of each byte.
  Merges merges{0};
  TextMap words;             // Tokens that words can become, by their bytes.
  TextMap texts;             // Every token by its text in the file: find().
  bool whole_words = false;  // A word in `words` is that token, whatever the merges say.
  bool nfc = false;          // Text is normalized behind the first and before the second of:
  std::vector<AddedToken> added_as_written;
  std::vector<AddedToken> added_normalized;
  std::unique_ptr<Cutter> cutter;
  std::vector<int32_t> template_before;
  std::vector<int32_t> template_after;
  int32_t end_of_document = -1;
};

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeParts parts);

}  // namespace telar::tokenizer
