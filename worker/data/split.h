// Which tokens are trained on and which are held out, where the user does not say so with files.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/section.h"
#include "worker/data/token_source.h"

namespace telar::data {

struct Split {
  std::vector<TokenRange> train, eval;
};

// Holds out the last `eval_fraction` of the tokens, and never less than one window of sequence_length + 1.
// INVALID_ARGUMENT when the fraction is not in (0, 1) or one of the two parts cannot hold a window; the message says
// how many tokens there are and how many are needed.
absl::StatusOr<Split> hold_out_tail(uint64_t tokens, double eval_fraction, uint32_t sequence_length);

// Holds out whole documents: those whose hash, as a fraction of 2^64, is below `eval_fraction`. The hash is of the
// document's tokens and of nothing else, so it is the same one's turn in every order, among whatever other documents,
// in however many files, and under every seed; equal documents stay together. The tokens `end_of_document` don't count,
// so neither does where a format puts them. Reads all tokens once, unless `cache` knows. INVALID_ARGUMENT when the
// fraction is not in (0, 1), or leaves nothing on one of the sides.
absl::StatusOr<Split> hold_out_documents(const TokenSource& source, const Documents& documents, double eval_fraction,
                                         int32_t end_of_document, const IndexCache& cache = IndexCache());

}  // namespace telar::data
