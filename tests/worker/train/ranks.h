// A job's ranks as threads of one process, and its logical tensors put together from what they hold.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fakes/delaying_communicator.h"
#include "tests/fakes/key_value_store.h"
#include "worker/backend/cpu/cpu.h"
#include "worker/train/replica.h"

namespace telar::train::testing {

struct Rank {
  std::unique_ptr<backend::Device> device;
  std::vector<std::unique_ptr<backend::Communicator>> groups;
  std::vector<std::unique_ptr<backend::Communicator>> late;  // Over `groups`.
  std::unique_ptr<Replica> replica;
};

inline std::unique_ptr<backend::Device> cpu_device(int) {
  return backend::cpu::create_device({}, backend::cpu::create_kernels(), backend::cpu::create_gloo_communicators);
}

struct RankOptions {
  Replica::Execution execution = Replica::Execution::kLanes;
  int64_t bucket_elements = 0;  // See plan::run_shape.
  int64_t logits_bytes = model::Head::kChunkBytes;
  int64_t piece_rows = 1;  // See plan::RunShape: as little as there is, for models as small as a test's.
  std::function<std::unique_ptr<backend::Device>(int rank)> device = cpu_device;
  std::optional<fakes::Delays> delays;  // Of all calls of all ranks.
};

inline parallel::Mesh mesh_of(const v1::JobSpec& spec, int rank) {
  const v1::ParallelSpec& parallel = spec.parallel();
  return parallel::Mesh::of_rank(rank, static_cast<int>(parallel.data()), static_cast<int>(parallel.pipeline()),
                                 static_cast<int>(parallel.tensor()));
}

// All members of every group must make theirs at the same time.
inline Rank make_rank(const v1::JobSpec& spec, backend::KeyValueStore& store, int rank, const RankOptions& options) {
  Rank made;
  made.device = options.device(rank);
  plan::RunShape shape = plan::run_shape(spec, mesh_of(spec, rank), options.bucket_elements);
  shape.logits_bytes = options.logits_bytes;
  shape.piece_rows = options.piece_rows;
  auto communicators =
      made.device->create_communicators(store, {.rank = rank, .listen_host = "127.0.0.1"}, shape.groups.list());
  EXPECT_TRUE(communicators.ok()) << communicators.status();
  if (!communicators.ok()) return made;
  made.groups = *std::move(communicators);
  std::vector<backend::Communicator*> groups;
  for (const auto& communicator : made.groups) groups.push_back(communicator.get());
  if (options.delays.has_value()) {
    made.late = fakes::delayed(groups, *options.delays, rank);
    for (size_t group = 0; group < groups.size(); ++group) groups[group] = made.late[group].get();
  }
  auto replica = Replica::create(std::move(shape), *made.device, groups, options.execution);
  EXPECT_TRUE(replica.ok()) << replica.status();
  if (replica.ok()) made.replica = *std::move(replica);
  return made;
}

// Runs `body(rank, replica)` on every rank of the job at once.
inline void on_all_ranks(const v1::JobSpec& spec, const RankOptions& options,
                         const std::function<void(int, Replica&)>& body) {
  fakes::InProcessStore store;
  std::vector<std::thread> threads;
  for (int r = 0; r < static_cast<int>(spec.resources().devices()); ++r) {
    threads.emplace_back([&, r] {
      const Rank rank = make_rank(spec, store, r, options);
      if (rank.replica != nullptr) body(r, *rank.replica);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The part of a global batch that a rank's replica reads; all ranks of one replica read the same.
inline std::span<const int32_t> share(const std::vector<int32_t>& batch, const Replica& replica) {
  const parallel::Mesh& mesh = replica.shape().mesh;
  const size_t size = batch.size() / static_cast<size_t>(mesh.dp_size);
  return std::span(batch).subspan(static_cast<size_t>(mesh.dp) * size, size);
}

inline const parallel::Parameter& parameter_of(const Replica& replica, const parallel::Piece& piece) {
  return replica.shape().layout.groups()[piece.group].parts[piece.part];
}

// Calls `body(i, j)` for each element of a piece in order: element i of the piece is element j of the logical tensor.
template <typename Body>
void for_each_element(const parallel::Parameter& parameter, const parallel::Range& slice, Body body) {
  size_t i = 0;
  const int64_t columns = parameter.shape.rank() == 1 ? 1 : parameter.shape[1];
  for (const parallel::Box& box : parallel::boxes(parameter, slice.first, slice.count)) {
    const int64_t width = parameter.shape.rank() == 1 ? 1 : box.extent[1];
    const int64_t column = parameter.shape.rank() == 1 ? 0 : box.offset[1];
    for (int64_t row = box.offset[0]; row < box.offset[0] + box.extent[0]; ++row) {
      for (int64_t c = 0; c < width; ++c) body(i++, static_cast<size_t>(row * columns + column + c));
    }
  }
}

// Logical tensors by name, put together by all ranks. Threads: any.
class Logical {
 public:
  // All pieces that the replica holds, of the ranks that have a slice the one that counts it.
  void add(const Replica& replica, Replica::Kind kind) {
    for (const parallel::Piece& piece : replica.pieces()) {
      const parallel::Parameter& parameter = parameter_of(replica, piece);
      if (!parameter.primary) continue;
      std::vector<float> values(static_cast<size_t>(piece.slice.count));
      EXPECT_TRUE(replica.read(kind, piece, values).ok());
      const std::lock_guard lock(mutex_);
      std::vector<float>& whole = tensors_[parameter.name];
      whole.resize(static_cast<size_t>(parameter.shape.elements()));
      for_each_element(parameter, piece.slice, [&](size_t i, size_t j) { whole[j] = values[i]; });
    }
  }
  const std::map<std::string, std::vector<float>>& tensors() const { return tensors_; }
  bool operator==(const Logical& other) const { return tensors_ == other.tensors_; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<float>> tensors_;
};

// Writes masters from whole logical tensors; `whole(name)` gives one.
template <typename Whole>
void write_masters(Replica& replica, Whole whole) {
  for (const parallel::Piece& piece : replica.pieces()) {
    const parallel::Parameter& parameter = parameter_of(replica, piece);
    const std::vector<float> logical = whole(parameter.name);
    std::vector<float> values(static_cast<size_t>(piece.slice.count));
    for_each_element(parameter, piece.slice, [&](size_t i, size_t j) { values[i] = logical[j]; });
    EXPECT_TRUE(replica.write(Replica::Kind::kMaster, piece, values).ok());
  }
  EXPECT_TRUE(replica.masters_changed().ok());
}

}  // namespace telar::train::testing
