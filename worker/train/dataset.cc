#include "worker/train/dataset.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/permutation.h"
#include "worker/data/prepared.h"
#include "worker/data/sharded_source.h"
#include "worker/data/split.h"
#include "worker/model/random.h"
#include "worker/train/failure.h"

namespace telar::train {
namespace {

using Paths = google::protobuf::RepeatedPtrField<std::string>;

// All directories of prepared data that the spec names, in its order; none for another format.
absl::StatusOr<std::vector<data::PreparedDirectory>> read_prepared(const v1::JobSpec& spec) {
  std::vector<std::string> paths;
  if (spec.data().format() != v1::DataSpec::PREPARED) return std::vector<data::PreparedDirectory>();
  const auto add = [&paths](const Paths& more) { paths.insert(paths.end(), more.begin(), more.end()); };
  add(spec.data().train());
  add(spec.data().eval());
  for (const v1::DataSource& source : spec.data().sources()) {
    add(source.train());
    add(source.eval());
  }
  return data::read_prepared(paths);
}

// The tokenizer of a complete spec: the job's, or that of the prepared data, which has to be the same if both are told.
absl::StatusOr<v1::TokenizerSpec> tokenizer_spec(const v1::JobSpec& spec,
                                                 const std::vector<data::PreparedDirectory>& prepared) {
  if (prepared.empty()) return spec.tokenizer();
  if (auto status = data::check_tokenizer(prepared, spec.tokenizer()); !status.ok()) return status;
  if (spec.tokenizer().kind() == v1::TokenizerSpec::NONE) return spec.tokenizer();
  return data::prepared_tokenizer(prepared);
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

class Opening {
 public:
  Opening(const v1::JobSpec& spec, const data::IndexCache& cache, Dataset& set)
      : spec_(spec), data_(spec.data()), cache_(cache), set_(set) {}

  absl::Status run() {
    auto prepared = read_prepared(spec_);
    if (!prepared.ok()) return prepared.status();
    prepared_ = *std::move(prepared);
    const auto tokenizer = tokenizer_spec(spec_, prepared_);
    if (!tokenizer.ok()) return tokenizer.status();
    const absl::Status opened = open_tokenizer(*tokenizer, spec_.model().vocab(), set_);
    if (!opened.ok()) return opened;
    end_of_document_ = end_of_document();
    if (data_.sources().empty()) {
      v1::DataSource only;
      *only.mutable_train() = data_.train();
      *only.mutable_eval() = data_.eval();
      only.set_name("train");
      only.set_weight(1);
      if (auto status = add(only, spec_.seed()); !status.ok()) return status;
    }
    set_.named = !data_.sources().empty();
    for (const v1::DataSource& source : data_.sources()) {
      // By its name, so that its order stays when others come and go.
      const uint64_t seed = data::mix(spec_.seed() ^ data::mix(model::tensor_stream(source.name())));
      const absl::Status status = add(source, seed);
      if (!status.ok()) return with_prefix(absl::StrCat("source ", source.name(), ": "), status);
    }
    return mix();
  }

 private:
  // -1: not known.
  int32_t end_of_document() const {
    if (set_.tokenizer != nullptr) return set_.tokenizer->end_of_document();
    const std::string& text = spec_.tokenizer().end_of_document();
    int32_t id = -1;
    std::from_chars(text.data(), text.data() + text.size(), id);
    return id;
  }
  bool needs_documents() const {
    return data_.reset_at_documents() || data_.mask_document_starts() || data_.rows() == v1::DataSpec::DOCUMENT;
  }

  absl::StatusOr<std::unique_ptr<data::TokenSource>> open(const Paths& paths) const {
    const std::vector<std::string> list(paths.begin(), paths.end());
    const int64_t vocab = spec_.model().vocab();
    switch (data_.format()) {
      case v1::DataSpec::LLMC_BIN:
        return data::open_llmc_bin(list, vocab);
      case v1::DataSpec::MEGATRON:
        return data::open_megatron(list, vocab);
      case v1::DataSpec::PREPARED:
        return open_prepared(list);
      default:
        return data::open_text(list, vocab);
    }
  }

  // Of what was read already.
  absl::StatusOr<std::unique_ptr<data::TokenSource>> open_prepared(const std::vector<std::string>& paths) const {
    const auto wanted = data::expand_paths(paths);
    if (!wanted.ok()) return wanted.status();
    std::vector<data::PreparedDirectory> directories;
    for (const std::string& path : *wanted) {
      const auto is_it = [&](const data::PreparedDirectory& one) { return one.path == path; };
      const auto found = std::find_if(prepared_.begin(), prepared_.end(), is_it);
      if (found == prepared_.end()) {
        return absl::NotFoundError(absl::StrCat("dataset ", path, ": was not there a moment ago"));
      }
      directories.push_back(*found);
    }
    return data::open_prepared(directories, spec_.model().vocab());
  }

  absl::StatusOr<const Dataset::Opened*> open_files(const Paths& paths, bool with_documents) {
    auto tokens = open(paths);
    if (!tokens.ok()) return tokens.status();
    Dataset::Opened opened{*std::move(tokens), nullptr};
    if (with_documents) {
      auto documents = opened.tokens->documents(end_of_document_, cache_);
      if (!documents.ok()) return documents.status();
      opened.documents = *std::move(documents);
    }
    set_.opened.push_back(std::move(opened));
    return &set_.opened.back();
  }

  absl::StatusOr<data::Split> split(const Dataset::Opened& train) const {
    if (data_.split() != v1::DataSpec::DOCUMENTS) {
      return data::hold_out_tail(train.tokens->size(), data_.eval_fraction(), spec_.batch().sequence_length());
    }
    return data::hold_out_documents(*train.tokens, *train.documents, data_.eval_fraction(), end_of_document_, cache_);
  }

  absl::Status add(const v1::DataSource& source, uint64_t seed) {
    const bool holds_out = source.eval().empty();
    const bool by_document = holds_out && data_.split() == v1::DataSpec::DOCUMENTS;
    const auto train = open_files(source.train(), needs_documents() || by_document);
    if (!train.ok()) return train.status();
    // At other addresses when more is opened.
    const data::TokenSource* tokens = (*train)->tokens.get();
    const data::Documents* documents = (*train)->documents.get();
    data::Split parts{{{0, tokens->size()}}, {}};
    if (holds_out) {
      auto made = split(**train);
      if (!made.ok()) return made.status();
      parts = *std::move(made);
    }
    data::Section train_section(*tokens, documents, parts.train);
    if (!holds_out) {
      const auto eval = open_files(source.eval(), needs_documents());
      if (!eval.ok()) return eval.status();
      tokens = (*eval)->tokens.get();
      documents = (*eval)->documents.get();
      parts.eval = {{0, tokens->size()}};
    }
    return add_sections(source, seed, std::move(train_section), {*tokens, documents, parts.eval});
  }

  absl::Status add_sections(const v1::DataSource& source, uint64_t seed, data::Section train, data::Section eval) {
    v1::SourceReport report;
    report.set_name(source.name());
    report.set_documents(train.document_count() + eval.document_count());
    report.set_train_tokens(train.size());
    report.set_eval_tokens(eval.size());
    set_.sources.push_back(report);
    set_.train_tokens += train.size();
    set_.eval_tokens += eval.size();
    weights_.push_back(source.weight());

    const data::RowOptions options{.sequence_length = spec_.batch().sequence_length(),
                                   .kind = data_.rows() == v1::DataSpec::DOCUMENT ? data::RowOptions::Kind::kDocument
                                                                                  : data::RowOptions::Kind::kPacked,
                                   .mask_document_starts = data_.mask_document_starts()};
    auto train_rows = data::Sampler::shuffled(std::move(train), options, seed);
    if (!train_rows.ok()) return train_rows.status();
    train_rows_.push_back(*std::move(train_rows));
    auto eval_rows = data::Sampler::in_order(std::move(eval), options);
    if (!eval_rows.ok()) return with_prefix("held out: ", eval_rows.status());
    set_.eval.push_back({source.name(), *std::move(eval_rows)});
    return absl::OkStatus();
  }

  absl::Status mix() {
    auto blend = data::Blend::create(weights_);
    if (!blend.ok()) return blend.status();
    set_.train.emplace(*std::move(blend), std::move(train_rows_));
    const uint64_t samples = spec_.schedule().steps() * spec_.batch().global();
    const std::vector<double> epochs = set_.train->epochs(samples);
    // Held-out data is mixed as what is trained on, as far as it goes, but something of each source.
    const std::vector<uint64_t> counts = set_.train->blend().counts(spec_.eval().sequences());
    const uint64_t least = spec_.eval().sequences() > 0 ? 1 : 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      set_.sources[i].set_share(set_.train->blend().share(i));
      set_.sources[i].set_epochs(epochs[i]);
      set_.eval[i].samples = std::min(std::max(counts[i], least), set_.eval[i].rows.rows());
    }
    return absl::OkStatus();
  }

  const v1::JobSpec& spec_;
  const v1::DataSpec& data_;
  const data::IndexCache& cache_;
  Dataset& set_;
  std::vector<data::PreparedDirectory> prepared_;
  int32_t end_of_document_ = -1;
  std::vector<double> weights_;
  std::vector<data::Sampler> train_rows_;
};

}  // namespace

absl::StatusOr<Dataset> open_dataset(const v1::JobSpec& spec, const data::IndexCache& cache) {
  Dataset set;
  const absl::Status status = Opening(spec, cache, set).run();
  if (!status.ok()) return with_class(v1::DATA, status);
  return set;
}

}  // namespace telar::train
