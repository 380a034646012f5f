#include "worker/train/saved_state.h"

#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_writer.h"
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

std::vector<int64_t> extents(const engine::Shape& shape) {
  std::vector<int64_t> dims;
  for (int axis = 0; axis < shape.rank(); ++axis) dims.push_back(shape[axis]);
  return dims;
}

// Calls `body(group, part, parameter)` for every logical tensor, until one fails.
template <typename Body>
absl::Status for_each_parameter(const Replica& replica, Body body) {
  const auto& groups = replica.shape().layout.groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t p = 0; p < groups[g].parts.size(); ++p) {
      const absl::Status status = body(g, p, groups[g].parts[p]);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status load_kind(const checkpoint::CheckpointReader& reader, const KindPair& kind, Replica& replica) {
  std::vector<float> values;
  return for_each_parameter(replica, [&](size_t g, size_t p, const parallel::Parameter& parameter) -> absl::Status {
    const checkpoint::TensorEntry* entry = reader.manifest().find(parameter.name, kind.stored);
    if (entry != nullptr && entry->shape != extents(parameter.shape)) {
      return with_class(v1::CONFIG, absl::FailedPreconditionError(absl::StrCat(
                                        reader.path(), ": ", parameter.name,
                                        " has another shape than the spec's model, ", parameter.shape.to_string())));
    }
    values.resize(static_cast<size_t>(parameter.shape.elements()));
    const absl::Status status = reader.read(parameter.name, kind.stored, std::as_writable_bytes(std::span(values)));
    if (absl::IsNotFound(status)) return with_class(v1::CONFIG, status);
    if (!status.ok()) return with_class(v1::STORAGE, status);
    return replica.write(kind.device, g, p, values);
  });
}

absl::Status load_step_state(const checkpoint::Manifest& manifest, Replica& replica) {
  std::vector<float> state(backend::kStepStates);
  absl::Status status = replica.read_step_state(state);
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

absl::StatusOr<checkpoint::OptimizerState> save_step_state(const Replica& replica) {
  std::vector<float> state(backend::kStepStates);
  const absl::Status status = replica.read_step_state(state);
  if (!status.ok()) return status;
  const auto count = [&](backend::StepState of) { return static_cast<uint64_t>(state[of]); };
  const bool scales = replica.shape().spec.precision().compute() == v1::FP16;
  return checkpoint::OptimizerState{count(backend::kAppliedSteps), count(backend::kSkippedSteps),
                                    count(backend::kGoodSteps), scales ? state[backend::kLossScale] : 0.0};
}

}  // namespace

absl::StatusOr<std::string> SavedState::newest() const {
  auto latest = checkpoint::find_latest(files_, plan_.run_dir(), checkpoint::Depth::kContents);
  if (!latest.ok()) return with_class(v1::STORAGE, latest.status());
  for (const checkpoint::Skipped& skipped : latest->skipped) {
    spdlog::warn("checkpoint {} is not usable: {}", skipped.path, std::string(skipped.why.message()));
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

absl::StatusOr<std::string> SavedState::choose(backend::KeyValueStore* store) const {
  if (plan_.rank() != 0) {
    const std::string keys[] = {kChosenKey};
    const auto values = store->get(keys, kChoosePatience);
    if (!values.ok()) return with_class(v1::COMMUNICATION, values.status());
    return values->front();
  }
  const absl::StatusOr<std::string> chosen = newest();
  if (!chosen.ok() || store == nullptr) return chosen;
  const absl::Status status = store->put(kChosenKey, *chosen);
  if (!status.ok()) return with_class(v1::COMMUNICATION, status);
  return chosen;
}

absl::StatusOr<Position> SavedState::restore(const std::string& path, Replica& replica) const {
  const auto reader = checkpoint::CheckpointReader::open(files_, path);
  if (!reader.ok()) return with_class(v1::STORAGE, reader.status());
  for (const KindPair& kind : kState) {
    const absl::Status status = load_kind(**reader, kind, replica);
    if (!status.ok()) return status;
  }
  absl::Status status = load_step_state((*reader)->manifest(), replica);
  if (status.ok()) status = replica.masters_changed();
  if (!status.ok()) return status;
  return Position{(*reader)->manifest().step, (*reader)->manifest().consumed_samples};
}

absl::Status SavedState::load_weights(const std::string& path, Replica& replica) const {
  const auto reader = checkpoint::CheckpointReader::open(files_, path);
  if (!reader.ok()) return with_class(v1::CONFIG, reader.status());
  const absl::Status status = load_kind(**reader, kState[0], replica);
  return status.ok() ? replica.masters_changed() : status;
}

absl::StatusOr<SavedState::Saved> SavedState::save(const Replica& replica, const Position& position) const {
  auto writer = checkpoint::CheckpointWriter::create(files_, plan_.run_dir(), position.step, plan_.epoch());
  if (!writer.ok()) return with_class(v1::STORAGE, writer.status());
  std::vector<std::vector<float>> copies;  // Alive until published.
  for (const KindPair& kind : kState) {
    const absl::Status status =
        for_each_parameter(replica, [&](size_t g, size_t p, const parallel::Parameter& parameter) -> absl::Status {
          std::vector<float>& values = copies.emplace_back(static_cast<size_t>(parameter.shape.elements()));
          const absl::Status copied = replica.read(kind.device, g, p, values);
          if (!copied.ok()) return copied;
          checkpoint::TensorPart part;
          part.name = parameter.name;
          part.kind = kind.stored;
          part.shape = extents(parameter.shape);
          part.data = std::as_bytes(std::span(values));
          return (*writer)->add(std::move(part));
        });
    if (!status.ok()) return with_class(v1::STORAGE, status);
  }
  checkpoint::Manifest info;
  info.job = plan_.job();
  info.consumed_samples = position.consumed_samples;
  info.seed = plan_.spec().seed();
  const auto optimizer = save_step_state(replica);
  if (!optimizer.ok()) return optimizer.status();
  info.optimizer = *optimizer;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(plan_.spec(), &info.spec_json, options);
  if (!printed.ok()) return absl::InternalError(absl::StrCat("spec as JSON: ", printed.message().ToString()));
  info.layout = {plan_.spec().parallel().tensor(), plan_.spec().parallel().pipeline(), plan_.spec().parallel().data(),
                 plan_.spec().parallel().zero_stage()};
  const auto published = (*writer)->publish(std::move(info), plan_.spec().checkpoint().keep());
  if (!published.ok()) return with_class(v1::STORAGE, published.status());
  for (const absl::Status& warning : published->warnings) spdlog::warn("{}", std::string(warning.message()));
  return Saved{published->path, published->bytes};
}

absl::Status SavedState::write_sample(const std::string& text) const {
  return with_class(v1::STORAGE, checkpoint::write_file(files_, plan_.run_dir() + "/sample.txt", text));
}

}  // namespace telar::train
