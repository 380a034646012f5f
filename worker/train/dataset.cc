#include "worker/train/dataset.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/data/prepared.h"
#include "worker/data/sharded_source.h"
#include "worker/train/failure.h"

namespace telar::train {
namespace {

absl::StatusOr<std::unique_ptr<data::TokenSource>> open(const v1::DataSpec& spec,
                                                        const google::protobuf::RepeatedPtrField<std::string>& paths,
                                                        int64_t vocab) {
  const std::vector<std::string> list(paths.begin(), paths.end());
  switch (spec.format()) {
    case v1::DataSpec::LLMC_BIN:
      return data::open_llmc_bin(list, vocab);
    case v1::DataSpec::MEGATRON:
      return data::open_megatron(list, vocab);
    case v1::DataSpec::PREPARED:
      return data::open_prepared(list, vocab);
    default:
      return data::open_text(list, vocab);
  }
}

// The tokenizer of a complete spec: the job's, or that of the prepared data, which has to be the same if both are told.
absl::StatusOr<v1::TokenizerSpec> tokenizer_spec(const v1::JobSpec& spec) {
  if (spec.data().format() != v1::DataSpec::PREPARED) return spec.tokenizer();
  std::vector<std::string> paths(spec.data().train().begin(), spec.data().train().end());
  paths.insert(paths.end(), spec.data().eval().begin(), spec.data().eval().end());
  if (auto status = data::check_tokenizer(paths, spec.tokenizer()); !status.ok()) return status;
  if (spec.tokenizer().kind() == v1::TokenizerSpec::NONE) return spec.tokenizer();
  return data::prepared_tokenizer(paths);
}

absl::Status open_tokenizer(const v1::TokenizerSpec& wanted, uint32_t model_vocab, Dataset& set) {
  if (wanted.kind() == v1::TokenizerSpec::NONE || wanted.kind() == v1::TokenizerSpec::KIND_UNSPECIFIED) {
    return absl::OkStatus();
  }
  auto opened = tokenizer::open(wanted);
  if (!opened.ok()) return opened.status();
  if (static_cast<uint32_t>((*opened)->vocab_size()) > model_vocab) {
    return absl::InvalidArgumentError(absl::StrCat("model.vocab: ", model_vocab, " is smaller than the ",
                                                   (*opened)->vocab_size(), " of tokenizer ",
                                                   wanted.path().empty() ? "byte" : wanted.path()));
  }
  set.tokenizer = *std::move(opened);
  return absl::OkStatus();
}

absl::Status open_into(const v1::JobSpec& spec, Dataset& set) {
  const int64_t vocab = spec.model().vocab();
  const uint32_t sequence = spec.batch().sequence_length();
  const auto tokenizer = tokenizer_spec(spec);
  if (!tokenizer.ok()) return tokenizer.status();
  auto train = open(spec.data(), spec.data().train(), vocab);
  if (!train.ok()) return train.status();
  set.train_source = *std::move(train);
  data::TokenRange train_range{0, set.train_source->size()};
  data::TokenRange eval_range;
  const data::TokenSource* eval_source = set.train_source.get();
  if (spec.data().eval().empty()) {
    const auto split = data::hold_out_tail(set.train_source->size(), spec.data().eval_fraction(), sequence);
    if (!split.ok()) return split.status();
    train_range = split->train;
    eval_range = split->eval;
  } else {
    auto eval = open(spec.data(), spec.data().eval(), vocab);
    if (!eval.ok()) return eval.status();
    set.eval_source = *std::move(eval);
    eval_source = set.eval_source.get();
    eval_range = {0, eval_source->size()};
  }
  const auto train_sampler = data::Sampler::shuffled(*set.train_source, train_range, sequence, spec.seed());
  if (!train_sampler.ok()) return train_sampler.status();
  const auto eval_sampler = data::Sampler::in_order(*eval_source, eval_range, sequence);
  if (!eval_sampler.ok()) return eval_sampler.status();
  set.train.emplace(*train_sampler);
  set.eval.emplace(*eval_sampler);
  set.train_tokens = train_range.count;
  set.eval_tokens = eval_range.count;
  return open_tokenizer(*tokenizer, spec.model().vocab(), set);
}

}  // namespace

absl::StatusOr<Dataset> open_dataset(const v1::JobSpec& spec) {
  Dataset set;
  const absl::Status status = open_into(spec, set);
  if (!status.ok()) return with_class(v1::DATA, status);
  return set;
}

}  // namespace telar::train
