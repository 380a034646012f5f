// A small training state whose every byte follows from its step, and the ways to save and compare it.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "worker/checkpoint/checkpoint_reader.h"
#include "worker/checkpoint/checkpoint_writer.h"

namespace telar::checkpoint {

struct State {
  struct Tensor {
    std::string name;
    TensorKind kind;
    backend::DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> data;
  };
  std::vector<Tensor> tensors;
  uint64_t step = 0;

  explicit State(uint64_t at_step, int64_t rows = 6) : step(at_step) {
    std::mt19937_64 random(at_step);
    const auto put = [&](const char* name, TensorKind kind, backend::DType dtype, std::vector<int64_t> shape) {
      size_t bytes = backend::size_of(dtype);
      for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
      std::vector<std::byte> data(bytes);
      for (auto& byte : data) byte = static_cast<std::byte>(random());
      tensors.push_back({name, kind, dtype, std::move(shape), std::move(data)});
    };
    put("norm", TensorKind::kWeight, backend::DType::kBF16, {5});
    put("wte", TensorKind::kWeight, backend::DType::kBF16, {rows, 5});
    put("wte", TensorKind::kMaster, backend::DType::kF32, {rows, 5});
    put("wte", TensorKind::kExpAvg, backend::DType::kF32, {rows, 5});
    put("scale", TensorKind::kMaster, backend::DType::kF32, {});
  }
};

inline absl::StatusOr<PublishResult> save(FileSystem& files, const std::string& run, const State& state,
                                          uint64_t attempt, const RetentionRule& rule,
                                          std::optional<double> eval_loss = std::nullopt, uint64_t shard_bytes = 128) {
  auto writer = CheckpointWriter::create(files, run, state.step, attempt, shard_bytes);
  if (!writer.ok()) return writer.status();
  for (const auto& tensor : state.tensors) {
    auto status = (*writer)->add({tensor.name, tensor.kind, tensor.dtype, tensor.shape, tensor.data, {}, {}});
    if (!status.ok()) return status;
  }
  if (auto status = (*writer)->add_tied("lm_head", TensorKind::kWeight, "wte"); !status.ok()) return status;
  return (*writer)->publish({.job = "projects/p/jobs/j",
                             .consumed_samples = 8 * state.step,
                             .seed = 7,
                             .eval_loss = eval_loss,
                             .spec_json = R"({"name":"j","batch":{"global":8}})",
                             .layout = {.dp = 2}},
                            rule);
}

inline absl::StatusOr<PublishResult> save(FileSystem& files, const std::string& run, const State& state,
                                          uint64_t attempt = 1, uint32_t keep = 0, uint64_t shard_bytes = 128) {
  return save(files, run, state, attempt, {.keep = keep}, std::nullopt, shard_bytes);
}

// OK when every tensor of the checkpoint has the bytes of the state.
inline absl::Status compare(const CheckpointReader& reader, const State& state) {
  if (reader.manifest().step != state.step || reader.manifest().consumed_samples != 8 * state.step) {
    return absl::InternalError("another step");
  }
  for (const auto& tensor : state.tensors) {
    std::vector<std::byte> read(tensor.data.size());
    if (auto status = reader.read(tensor.name, tensor.kind, read); !status.ok()) return status;
    if (read != tensor.data) return absl::InternalError(tensor.name + " differs");
  }
  std::vector<std::byte> tied(state.tensors[1].data.size());
  if (auto status = reader.read("lm_head", TensorKind::kWeight, tied); !status.ok()) return status;
  return tied == state.tensors[1].data ? absl::OkStatus() : absl::InternalError("lm_head differs");
}

}  // namespace telar::checkpoint
