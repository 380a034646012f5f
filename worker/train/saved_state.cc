#include "worker/train/saved_state.h"

#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/pieces.h"
#include "worker/checkpoint/run_files.h"
#include "worker/convert/open_model.h"
#include "worker/model/parameters.h"
#include "worker/train/failure.h"

namespace telar::train {
namespace {

using checkpoint::TensorKind;
using Kind = Replica::Kind;

struct KindPair {
  Kind device;
  TensorKind stored;
};
constexpr KindPair kState[] = {{Kind::kMaster, TensorKind::kMaster},
                               {Kind::kExpAvg, TensorKind::kExpAvg},
                               {Kind::kExpAvgSq, TensorKind::kExpAvgSq}};

constexpr const char* kChosenKey = "resume_from";
constexpr std::chrono::minutes kChoosePatience{10};  // Rank 0 reads the whole newest checkpoint to verify it.

// An error that the device gave, so that it is not taken for one of the files.
absl::Status of_device(const absl::Status& status) { return with_class(class_of(status), status); }

// Every logical tensor of the model, of the kinds that a run saves or only the masters.
std::vector<checkpoint::TensorEntry> model_tensors(const v1::ModelSpec& model, size_t kinds = std::size(kState)) {
  std::vector<TensorKind> stored;
  for (size_t i = 0; i < kinds; ++i) stored.push_back(kState[i].stored);
  return checkpoint::tensors_of(model::parameter_groups(model), stored);
}

// Before anything is read, and of all tensors on every rank, so that all ranks say the same.
absl::Status check_fits(const checkpoint::CheckpointReader& reader,
                        const std::vector<checkpoint::TensorEntry>& tensors) {
  return with_class(v1::CONFIG, checkpoint::check_has(reader, tensors));
}

absl::Status load_kind(const checkpoint::WeightSource& source, const KindPair& kind, Replica& replica) {
  const auto write = [&](const parallel::Piece& piece, std::span<const float> values) {
    return of_device(replica.write(kind.device, piece, values));
  };
  return with_class(v1::STORAGE,
                    checkpoint::load_pieces(source, replica.shape().layout, replica.pieces(), kind.stored, write));
}

// The tensor of one product, and where it is in a step state.
struct AmaxTensor {
  checkpoint::TensorEntry entry;
  size_t first = 0;
};
std::vector<AmaxTensor> amax_tensors(const plan::RunShape& shape) {
  std::vector<AmaxTensor> tensors;
  if (!shape.scales_are_delayed()) return tensors;
  const parallel::Delayed& delayed = shape.fp8.delayed;
  size_t first = backend::kStepStates;
  for (const std::string& product : delayed.products) {
    tensors.push_back(
        {{.name = product, .kind = TensorKind::kFp8Amax, .shape = {parallel::kOperands, delayed.entries}}, first});
    first += static_cast<size_t>(parallel::kOperands * delayed.entries);
  }
  return tensors;
}

// Of a checkpoint of a run that had no such history, nothing; of one with another length the newest entries.
absl::Status load_amax(const checkpoint::CheckpointReader& reader, const plan::RunShape& shape,
                       std::span<float> step_state) {
  for (const AmaxTensor& tensor : amax_tensors(shape)) {
    const checkpoint::TensorEntry* stored = reader.manifest().find(tensor.entry.name, TensorKind::kFp8Amax);
    if (stored == nullptr || stored->shape.size() != 2 || stored->shape[0] != parallel::kOperands) continue;
    const int64_t common = std::min(stored->shape[1], shape.fp8.delayed.entries);
    for (int64_t row = 0; row < parallel::kOperands; ++row) {
      const checkpoint::Box newest{{row, 0}, {1, common}};
      const size_t first = tensor.first + static_cast<size_t>(row * shape.fp8.delayed.entries);
      const absl::Status status = reader.read_values(tensor.entry.name, TensorKind::kFp8Amax, std::span(&newest, 1),
                                                     step_state.subspan(first, static_cast<size_t>(common)));
      if (!status.ok()) return with_class(v1::STORAGE, status);
    }
  }
  return absl::OkStatus();
}

absl::Status load_step_state(const checkpoint::CheckpointReader& reader, Replica& replica) {
  const checkpoint::Manifest& manifest = reader.manifest();
  std::vector<float> state(replica.step_state_size());
  absl::Status status = replica.read_step_state(state);
  if (status.ok()) status = load_amax(reader, replica.shape(), state);
  if (!status.ok()) return status;
  const checkpoint::OptimizerState saved =
      manifest.optimizer.value_or(checkpoint::OptimizerState{.applied_steps = manifest.step});
  state[backend::kAppliedSteps] = static_cast<float>(saved.applied_steps);
  state[backend::kGoodSteps] = static_cast<float>(saved.good_steps);
  state[backend::kSkippedSteps] = static_cast<float>(saved.skipped_steps);
  const v1::PrecisionSpec& precision = replica.shape().spec.precision();
  if (precision.compute() == v1::FP16 && saved.loss_scale > 0) {  // Else the spec's initial scale stays.
    state[backend::kLossScale] =
        static_cast<float>(std::clamp(saved.loss_scale, precision.loss_scale().min(), precision.loss_scale().max()));
  }
  return replica.write_step_state(state);
}

checkpoint::OptimizerState optimizer_state(std::span<const float> state, v1::Precision compute) {
  const auto count = [&](backend::StepState of) { return static_cast<uint64_t>(state[of]); };
  return {count(backend::kAppliedSteps), count(backend::kSkippedSteps), count(backend::kGoodSteps),
          compute == v1::FP16 ? state[backend::kLossScale] : 0.0};
}

// Of a run whose data has one source with a name, older manifests do not tell.
std::map<std::string, uint64_t> consumed_sources(const checkpoint::Manifest& manifest) {
  v1::JobSpec spec;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!manifest.consumed_sources.empty() || manifest.spec_json.empty() ||
      !google::protobuf::util::JsonStringToMessage(manifest.spec_json, &spec, options).ok() ||
      spec.data().sources_size() != 1) {
    return manifest.consumed_sources;
  }
  return {{spec.data().sources(0).name(), manifest.consumed_samples}};
}

// Tells when it is asked.
class Announcing final : public checkpoint::Committer {
 public:
  Announcing(checkpoint::Committer& inner, const std::function<void()>& asked) : inner_(inner), asked_(asked) {}
  absl::Status commit(const checkpoint::Decision& wanted) override {
    if (asked_) asked_();
    return inner_.commit(wanted);
  }
  absl::StatusOr<std::optional<checkpoint::Decision>> last() override { return inner_.last(); }
  bool remembers() const override { return inner_.remembers(); }

 private:
  checkpoint::Committer& inner_;
  const std::function<void()>& asked_;
};

}  // namespace

absl::StatusOr<std::string> SavedState::newest() {
  auto latest = checkpoint::find_latest(files_, plan_.run_dir(), checkpoint::Depth::kContents);
  if (!latest.ok()) return with_class(v1::STORAGE, latest.status());
  for (const checkpoint::Skipped& skipped : latest->skipped) {
    const std::string why(skipped.why.message());
    spdlog::warn("checkpoint {} is not usable: {}", skipped.path, why);
    passed_over_.push_back(absl::StrCat(skipped.path, ": ", why));
  }
  if (latest->checkpoint == nullptr && !latest->skipped.empty()) {
    // Starting again from step 0 would throw the run away without a word.
    return with_class(v1::STORAGE,
                      absl::DataLossError(absl::StrCat(
                          "none of the ", latest->skipped.size(), " checkpoints in ", plan_.run_dir(),
                          "/ckpt is usable; the newest: ", std::string(latest->skipped.front().why.message()))));
  }
  return latest->checkpoint == nullptr ? "" : latest->checkpoint->path();
}

absl::Status SavedState::roll_forward() const {
  std::vector<absl::Status> notes;
  const auto published = checkpoint::roll_forward(files_, plan_.run_dir(), plan_.epoch(), committer_, notes);
  for (const absl::Status& note : notes) spdlog::warn("{}", std::string(note.message()));
  if (absl::IsUnavailable(published.status())) return with_class(v1::COMMUNICATION, published.status());
  if (!published.ok()) return with_class(v1::STORAGE, published.status());
  if (*published)
    spdlog::warn("{} was saved and decided, but not published, by an earlier start: it is now", **published);
  return absl::OkStatus();
}

absl::StatusOr<std::string> SavedState::choose(backend::KeyValueStore* store) {
  if (plan_.rank() != 0) {
    const std::string keys[] = {kChosenKey};
    const auto values = store->get(keys, kChoosePatience);
    if (!values.ok()) return with_class(v1::COMMUNICATION, values.status());
    return values->front();
  }
  if (const absl::Status status = roll_forward(); !status.ok()) return status;
  // What an earlier life of this attempt left must not be taken for a save that has begun.
  std::vector<absl::Status> trouble;
  const absl::Status swept = checkpoint::sweep(files_, plan_.run_dir(), plan_.epoch(), trouble);
  if (!swept.ok()) return with_class(v1::STORAGE, swept);
  for (const absl::Status& warning : trouble) spdlog::warn("{}", std::string(warning.message()));
  const absl::StatusOr<std::string> chosen = newest();
  if (!chosen.ok() || store == nullptr) return chosen;
  const absl::Status status = store->put(kChosenKey, *chosen);
  if (!status.ok()) return with_class(v1::COMMUNICATION, status);
  return chosen;
}

absl::Status SavedState::check_state(const std::string& path) const {
  const auto reader = checkpoint::CheckpointReader::open(files_, path);
  if (!reader.ok()) return with_class(v1::STORAGE, reader.status());
  // As `telar ckpt convert` makes them.
  const auto& tensors = (*reader)->manifest().tensors;
  if (std::none_of(tensors.begin(), tensors.end(), [](const auto& one) { return one.kind == TensorKind::kExpAvg; })) {
    return with_class(v1::CONFIG,
                      absl::FailedPreconditionError(absl::StrCat("checkpoint ", path,
                                                                 ": holds weights only; a run can start from it, by "
                                                                 "checkpoint.init_from, but not go on")));
  }
  return check_fits(**reader, model_tensors(plan_.spec().model()));
}

absl::StatusOr<Position> SavedState::restore(const std::string& path, Replica& replica) const {
  const auto reader = checkpoint::CheckpointReader::open(files_, path);
  if (!reader.ok()) return with_class(v1::STORAGE, reader.status());
  for (const KindPair& kind : kState) {
    const absl::Status status = load_kind(**reader, kind, replica);
    if (!status.ok()) return status;
  }
  absl::Status status = load_step_state(**reader, replica);
  if (status.ok()) status = replica.masters_changed();
  if (!status.ok()) return status;
  const checkpoint::Manifest& manifest = (*reader)->manifest();
  return Position{manifest.step,        manifest.consumed_samples, manifest.eval_loss, consumed_sources(manifest),
                  manifest.blend_start, manifest.sources};
}

absl::StatusOr<std::unique_ptr<checkpoint::WeightSource>> SavedState::open_weights(const std::string& path) const {
  const auto format = convert::format_of(files_, path);
  if (!format.ok()) return with_class(v1::CONFIG, format.status());
  if (*format != convert::Format::kTelar) {
    auto opened = convert::open_model(files_, path);
    if (!opened.ok()) return with_class(v1::CONFIG, opened.status());
    const auto same = convert::check_same_model(plan_.spec().model(), opened->model, path);
    if (!same.ok()) return with_class(v1::CONFIG, same);
    return std::move(opened->weights);
  }
  auto reader = checkpoint::CheckpointReader::open(files_, path);
  if (!reader.ok()) return with_class(v1::CONFIG, reader.status());
  if (auto fits = check_fits(**reader, model_tensors(plan_.spec().model(), 1)); !fits.ok()) return fits;
  return *std::move(reader);
}

absl::Status SavedState::load_weights(const checkpoint::WeightSource& weights, Replica& replica) const {
  const absl::Status status = load_kind(weights, kState[0], replica);
  return status.ok() ? replica.masters_changed() : status;
}

std::vector<parallel::Piece> SavedState::share(const plan::RunShape& shape) {
  // Ranks that hold the same: all replicas, or those in the same place of their shard groups.
  const int group = shape.sharded() ? shape.layout.shards().count : 1;
  return checkpoint::share_of(shape.layout, shape.pieces(), shape.mesh.dp_size / group, shape.mesh.dp / group);
}

absl::StatusOr<SavedState::Values> SavedState::values_of(const Replica& replica) {
  Values values;
  values.read = [&replica](Kind kind, const parallel::Piece& piece, std::span<float> out) {
    return of_device(replica.read(kind, piece, out));
  };
  values.step_state.resize(replica.step_state_size());
  const absl::Status status = replica.read_step_state(values.step_state);
  if (!status.ok()) return status;
  return values;
}

absl::Status SavedState::add_state(const plan::RunShape& shape, const Values& values,
                                   checkpoint::CheckpointWriter& writer) const {
  const auto pieces = share(shape);
  const std::vector<AmaxTensor> amaxes = amax_tensors(shape);
  std::vector<checkpoint::TensorEntry> expected = model_tensors(plan_.spec().model());
  for (const AmaxTensor& tensor : amaxes) expected.push_back(tensor.entry);
  writer.expect(std::move(expected));
  for (const AmaxTensor& tensor : amaxes) {
    if (plan_.rank() != 0) break;  // All ranks have the same.
    const size_t count = static_cast<size_t>(parallel::kOperands * shape.fp8.delayed.entries);
    const absl::Status status =
        writer.add({.name = tensor.entry.name,
                    .kind = tensor.entry.kind,
                    .shape = tensor.entry.shape,
                    .data = std::as_bytes(std::span(values.step_state).subspan(tensor.first, count))});
    if (!status.ok()) return status;
  }
  for (const KindPair& kind : kState) {
    const auto read = [&values, device = kind.device](const parallel::Piece& piece, std::span<float> out) {
      return values.read(device, piece, out);
    };
    const absl::Status status = checkpoint::add_pieces(writer, shape.layout, pieces, kind.stored, read);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<checkpoint::Manifest> SavedState::describe(const Values& values, const Position& position) const {
  checkpoint::Manifest info;
  info.job = plan_.job();
  info.consumed_samples = position.consumed_samples;
  info.consumed_sources = position.consumed_sources;
  info.blend_start = position.blend_start;
  info.sources = position.sources;
  info.seed = plan_.spec().seed();
  info.optimizer = optimizer_state(values.step_state, plan_.spec().precision().compute());
  info.eval_loss = position.eval_loss;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(plan_.spec(), &info.spec_json, options);
  if (!printed.ok()) return absl::InternalError(absl::StrCat("spec as JSON: ", printed.message().ToString()));
  const v1::ParallelSpec& parallel = plan_.spec().parallel();
  info.layout = {parallel.tensor(), parallel.pipeline(), parallel.data(), parallel.zero_stage()};
  return info;
}

absl::StatusOr<SavedState::Saved> SavedState::save(const plan::RunShape& shape, const Values& values,
                                                   const Position& position, const std::function<void()>& staged,
                                                   const std::atomic<bool>* give_up) const {
  const checkpoint::Peers peers{static_cast<int>(plan_.rank()), static_cast<int>(plan_.world_size())};
  Announcing committer(committer_, staged);
  const checkpoint::Writing writing{.threads = values.threads, .committer = &committer, .give_up = give_up};
  auto writer = checkpoint::CheckpointWriter::create(files_, plan_.run_dir(), position.step, plan_.epoch(),
                                                     checkpoint::CheckpointWriter::kShardBytes, peers, writing);
  if (!writer.ok()) return with_class(v1::STORAGE, writer.status());
  auto info = describe(values, position);
  if (!info.ok()) return info.status();
  const absl::Status added = add_state(shape, values, **writer);
  if (!added.ok()) return with_class(v1::STORAGE, added);
  const v1::CheckpointSpec& spec = plan_.spec().checkpoint();
  const auto published = (*writer)->publish(*std::move(info), {spec.keep(), spec.keep_every(), spec.keep_best()});
  // Nobody to ask is no fault of the files.
  if (absl::IsUnavailable(published.status())) return with_class(v1::COMMUNICATION, published.status());
  if (!published.ok()) return with_class(v1::STORAGE, published.status());
  for (const absl::Status& warning : published->warnings) spdlog::warn("{}", std::string(warning.message()));
  return Saved{published->path, published->bytes, published->removed};
}

absl::Status SavedState::write_sample(const std::string& text) const {
  return with_class(v1::STORAGE, checkpoint::write_file(files_, plan_.run_dir() + "/sample.txt", text));
}

}  // namespace telar::train
