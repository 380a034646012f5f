// Checkpoints of every layout restored into every other. No device: a rank's memory is an array a bucket, and its ranks
// are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "tests/worker/checkpoint/memory_files.h"
#include "worker/checkpoint/pieces.h"
#include "worker/checkpoint/run_files.h"
#include "worker/model/parameters.h"
#include "worker/plan/resolve.h"
#include "worker/plan/run_shape.h"

namespace telar::checkpoint {
namespace {

using parallel::Parameter;
using parallel::Piece;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr std::array kKinds = {TensorKind::kMaster, TensorKind::kExpAvg, TensorKind::kExpAvgSq};

struct Cut {
  uint32_t tp = 1, pp = 1, dp = 1, zero = 0, shard = 0, virtual_stages = 1;
  const char* schedule = "";
};

std::ostream& operator<<(std::ostream& out, const Cut& cut) {
  return out << "tp " << cut.tp << " pp " << cut.pp << " dp " << cut.dp << " zero " << cut.zero << " shard "
             << cut.shard << " vpp " << cut.virtual_stages << " " << cut.schedule;
}

// Sizes that divide by little.
v1::ModelSpec gpt2() {
  v1::ModelSpec model;
  model.set_architecture(v1::GPT2);
  model.set_layers(5);
  model.set_hidden(24);
  model.set_heads(4);
  model.set_ffn(43);
  model.set_vocab(101);
  return model;
}

v1::ModelSpec llama(bool tied) {
  v1::ModelSpec model;
  model.set_architecture(v1::LLAMA);
  model.set_layers(4);
  model.set_hidden(40);
  model.set_heads(8);
  model.set_head_dim(6);
  model.set_kv_heads(2);
  model.set_ffn(37);
  model.set_vocab(67);
  model.set_tied_head(tied);
  return model;
}

std::vector<Cut> cuts(const v1::ModelSpec& model) {
  std::vector<Cut> all = {
      {},
      {.dp = 2},
      {.dp = 3},
      {.dp = 4, .zero = 1},
      {.dp = 5, .zero = 2},
      {.dp = 8, .zero = 3},
      {.dp = 4, .zero = 1, .shard = 2},
      {.dp = 6, .zero = 3, .shard = 3},
      {.tp = 2},
      {.tp = 4},
      {.tp = 2, .dp = 2},
      {.tp = 2, .dp = 3, .zero = 3},
      {.tp = 4, .dp = 2, .zero = 1},
      {.pp = 2},
      {.pp = 3, .dp = 2},
      {.pp = 2, .dp = 4, .zero = 2},
      {.tp = 2, .pp = 2},
      {.tp = 2, .pp = 2, .dp = 2},
      {.tp = 2, .pp = 2, .dp = 2, .zero = 1},
      {.tp = 2, .pp = 2, .dp = 4, .zero = 3, .shard = 2},
      {.pp = 2, .virtual_stages = 2, .schedule = "interleaved"},
      {.tp = 2, .pp = 2, .dp = 2, .zero = 1, .virtual_stages = 2, .schedule = "interleaved"},
      {.pp = 2, .dp = 2, .zero = 1, .virtual_stages = 2, .schedule = "zb-v"},
  };
  if (model.heads() == 8) all.push_back({.tp = 8});
  if (model.heads() == 8) all.push_back({.tp = 8, .pp = 2, .dp = 2, .zero = 1});
  return all;
}

v1::JobSpec spec_of(const v1::ModelSpec& model, const Cut& cut) {
  v1::JobSpec spec;
  spec.set_name("layouts");
  *spec.mutable_model() = model;
  spec.mutable_data()->add_train("/tiny.bin");
  spec.mutable_data()->set_format(v1::DataSpec::LLMC_BIN);
  spec.mutable_batch()->set_global(8 * cut.dp);
  spec.mutable_batch()->set_micro(1);
  spec.mutable_batch()->set_sequence_length(16);
  spec.mutable_precision()->set_compute(v1::FP32);
  spec.mutable_schedule()->set_steps(1);
  spec.mutable_optimizer()->set_learning_rate(1e-3);
  spec.mutable_resources()->set_devices(cut.tp * cut.pp * cut.dp);
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  parallel.set_tensor(cut.tp);
  parallel.set_pipeline(cut.pp);
  parallel.set_data(cut.dp);
  parallel.set_zero_stage(cut.zero);
  if (cut.shard > 0) parallel.set_shard(cut.shard);
  if (cut.virtual_stages > 1) parallel.set_virtual_stages(cut.virtual_stages);
  parallel.set_schedule(cut.schedule);
  for (const plan::SpecProblem& problem : plan::resolve(spec, v1::ResourceSpec::CPU)) {
    ADD_FAILURE() << problem.field << ": " << problem.description;
  }
  return spec;
}

// What element `index` of a flattened logical tensor is.
float value(const std::string& name, TensorKind kind, int64_t index) {
  uint64_t x = std::hash<std::string>()(name) + static_cast<uint64_t>(kind) * 0x9e3779b97f4a7c15u;
  x = (x ^ static_cast<uint64_t>(index)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
  return std::bit_cast<float>(0x3f800000u | static_cast<uint32_t>(x >> 41));  // In [1, 2).
}

// Which element of the flattened logical tensor element `index` of the flattened slice is.
int64_t logical_index(const Parameter& parameter, int64_t index) {
  const int64_t columns = parameter.shape.rank() == 2 ? parameter.shape[1] : 1;
  const bool cut = parameter.extent >= 0, by_columns = cut && parameter.shape.rank() == 2 && parameter.axis == 1;
  const int64_t held = by_columns ? parameter.extent : columns;
  const int64_t row = index / held + (cut && !by_columns ? parameter.first : 0);
  return row * columns + index % held + (by_columns ? parameter.first : 0);
}

// One rank, with arrays for a device.
class Rank {
 public:
  Rank(const v1::JobSpec& spec, int rank)
      : shape_(plan::run_shape(spec,
                               parallel::Mesh::of_rank(rank, static_cast<int>(spec.parallel().data()),
                                                       static_cast<int>(spec.parallel().pipeline()),
                                                       static_cast<int>(spec.parallel().tensor())),
                               /*bucket_elements=*/3000)) {
    for (auto& buckets : memory_) {
      for (const parallel::Bucket& bucket : shape_.layout.buckets()) {
        buckets.emplace_back(static_cast<size_t>(bucket.elements), std::numeric_limits<float>::quiet_NaN());
      }
    }
  }

  const plan::RunShape& shape() const { return shape_; }
  std::span<float> at(TensorKind kind, const Piece& piece) {
    return std::span(memory_[static_cast<size_t>(kind) - 1][static_cast<size_t>(piece.bucket)])
        .subspan(static_cast<size_t>(piece.first), static_cast<size_t>(piece.slice.count));
  }
  const Parameter& parameter(const Piece& piece) const { return shape_.layout.groups()[piece.group].parts[piece.part]; }

  void fill() {
    for (const TensorKind kind : kKinds) {
      for (const Piece& piece : shape_.pieces()) {
        for (int64_t i = 0; i < piece.slice.count; ++i)
          at(kind, piece)[static_cast<size_t>(i)] = wanted(kind, piece, i);
      }
    }
  }
  // Elements that are not what they should be; of pieces and of the memory between them.
  int64_t wrong() {
    int64_t count = 0, numbers = 0, held = 0;
    for (const TensorKind kind : kKinds) {
      for (const Piece& piece : shape_.pieces()) {
        held += piece.slice.count;
        for (int64_t i = 0; i < piece.slice.count; ++i) {
          count += at(kind, piece)[static_cast<size_t>(i)] != wanted(kind, piece, i);
        }
      }
    }
    for (const auto& buckets : memory_) {
      for (const auto& bucket : buckets) {
        for (const float x : bucket) numbers += !std::isnan(x);
      }
    }
    return count + numbers - held;
  }

  std::vector<Piece> share() const {
    const int group = shape_.sharded() ? shape_.layout.shards().count : 1;
    return share_of(shape_.layout, shape_.pieces(), shape_.mesh.dp_size / group, shape_.mesh.dp / group);
  }

  absl::StatusOr<PublishResult> save(FileSystem& files, uint64_t step, int64_t chunk_bytes) {
    auto writer = CheckpointWriter::create(files, kRun, step, 1, /*shard_bytes=*/20000,
                                           {shape_.mesh.rank(), shape_.mesh.world_size(), std::chrono::minutes(2)});
    if (!writer.ok()) return writer.status();
    (*writer)->expect(tensors_of(model::parameter_groups(shape_.spec.model()), kKinds));
    const auto pieces = share();
    for (const TensorKind kind : kKinds) {
      const auto read = [this, kind](const Piece& piece, std::span<float> out) {
        std::copy_n(at(kind, piece).begin(), out.size(), out.begin());
        return absl::OkStatus();
      };
      const auto status = add_pieces(**writer, shape_.layout, pieces, kind, read, chunk_bytes);
      if (!status.ok()) return status;
    }
    return (*writer)->publish({.job = "projects/p/jobs/j"}, {});
  }

  absl::Status load(const CheckpointReader& reader) {
    for (const TensorKind kind : kKinds) {
      const auto write = [&](const Piece& piece, std::span<const float> values) {
        std::copy(values.begin(), values.end(), at(kind, piece).begin());
        return absl::OkStatus();
      };
      const auto status = load_pieces(reader, shape_.layout, shape_.pieces(), kind, write);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  float wanted(TensorKind kind, const Piece& piece, int64_t i) const {
    const Parameter& of = parameter(piece);
    return value(of.name, kind, logical_index(of, piece.slice.first + i));
  }

  plan::RunShape shape_;
  std::array<std::vector<std::vector<float>>, kKinds.size()> memory_;
};

std::vector<Rank> ranks_of(const v1::ModelSpec& model, const Cut& cut) {
  const v1::JobSpec spec = spec_of(model, cut);
  std::vector<Rank> ranks;
  for (uint32_t rank = 0; rank < cut.tp * cut.pp * cut.dp; ++rank) ranks.emplace_back(spec, static_cast<int>(rank));
  return ranks;
}

void save_all(std::vector<Rank>& ranks, FileSystem& files, uint64_t step, int64_t chunk_bytes) {
  std::vector<absl::Status> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      ranks[i].fill();
      results[i] = ranks[i].save(files, step, chunk_bytes).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) ASSERT_TRUE(result.ok()) << result;
}

class Layouts : public testing::TestWithParam<v1::ModelSpec> {
 protected:
  const v1::ModelSpec model_ = spec_of(GetParam(), {}).model();  // Resolved.
};
INSTANTIATE_TEST_SUITE_P(Models, Layouts, testing::Values(gpt2(), llama(true), llama(false)),
                         [](const auto& model) -> std::string {
                           if (model.param.architecture() == v1::GPT2) return "Gpt2";
                           return model.param.tied_head() ? "LlamaTied" : "Llama";
                         });

TEST_P(Layouts, AnyRestoresAnyOther) {
  const std::vector<Cut> all = cuts(model_);
  MemoryFiles files;
  for (size_t from = 0; from < all.size(); ++from) {
    SCOPED_TRACE(testing::Message() << "saved by " << all[from]);
    std::vector<Rank> ranks = ranks_of(model_, all[from]);
    save_all(ranks, files, from + 1, from % 2 == 0 ? kChunkBytes : 700);
    if (HasFailure()) return;
    const auto reader = CheckpointReader::open(files, std::string(kRun) + "/ckpt/" + step_name(from + 1)).value();
    const auto tensors = tensors_of(model::parameter_groups(model_), kKinds);
    ASSERT_TRUE(check_has(*reader, tensors).ok());
    ASSERT_EQ(reader->manifest().tensors.size(), tensors.size());
    for (size_t to = 0; to < all.size(); ++to) {
      SCOPED_TRACE(testing::Message() << "restored by " << all[to]);
      for (Rank& rank : ranks_of(model_, all[to])) {
        const auto loaded = rank.load(*reader);
        ASSERT_TRUE(loaded.ok()) << loaded;
        ASSERT_EQ(rank.wrong(), 0) << "rank " << rank.shape().mesh.rank();
      }
    }
  }
  // Nothing else is left behind.
  const auto names = files.list(std::string(kRun) + "/ckpt").value();
  for (const std::string& name : names) {
    EXPECT_TRUE(step_of(name) || name == kLatestName) << name;
  }
}

TEST_P(Layouts, TheWorkOfSavingIsShared) {
  for (const Cut& cut : {Cut{.dp = 3}, Cut{.dp = 8}, Cut{.tp = 2, .dp = 4}, Cut{.dp = 6, .zero = 1, .shard = 2},
                         Cut{.dp = 4, .zero = 3}}) {
    SCOPED_TRACE(testing::Message() << cut);
    int64_t total = 0, most = 0;
    std::vector<Rank> ranks = ranks_of(model_, cut);
    for (const Rank& rank : ranks) {
      int64_t elements = 0;
      for (const Piece& piece : rank.share()) {
        const Parameter& parameter = rank.parameter(piece);
        EXPECT_TRUE(parameter.primary);
        if (cut.zero == 0 && parameter.shape.rank() == 2) {
          EXPECT_EQ(piece.slice.first % parameter.local()[1], 0);
        }
        elements += piece.slice.count;
      }
      total += elements;
      most = std::max(most, elements);
    }
    int64_t logical = 0;
    for (const auto& group : model::parameter_groups(model_)) {
      for (const Parameter& part : group.parts) logical += part.shape.elements();
    }
    EXPECT_EQ(total, logical);
    // A border moves by less than a row; shards have padding at their end.
    EXPECT_LE(most, total / static_cast<int64_t>(ranks.size()) + 1500);
  }
}

// Files that say how many bytes were read of each.
class CountingFiles : public MemoryFiles {
 public:
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    auto inner = MemoryFiles::open(path);
    if (!inner.ok()) return inner;
    return std::make_unique<Counting>(*std::move(inner), bytes_read);
  }
  uint64_t bytes_read = 0;

 private:
  class Counting : public ReadableFile {
   public:
    Counting(std::unique_ptr<ReadableFile> inner, uint64_t& bytes) : inner_(std::move(inner)), bytes_(bytes) {}
    uint64_t size() const override { return inner_->size(); }
    absl::Status read(uint64_t offset, std::span<std::byte> out) const override {
      bytes_ += out.size();
      return inner_->read(offset, out);
    }

   private:
    const std::unique_ptr<ReadableFile> inner_;
    uint64_t& bytes_;
  };
};

TEST_P(Layouts, ARankReadsWhatItHoldsAndLittleMore) {
  CountingFiles files;
  std::vector<Rank> one = ranks_of(model_, {});
  save_all(one, files, 1, /*chunk_bytes=*/200);
  const auto reader = CheckpointReader::open(files, std::string(kRun) + "/ckpt/" + step_name(1)).value();
  uint64_t total = 0;
  for (const FileEntry& file : reader->manifest().files) total += file.bytes;
  for (Rank& rank : ranks_of(model_, {.dp = 8, .zero = 3})) {
    files.bytes_read = 0;
    ASSERT_TRUE(rank.load(*reader).ok());
    EXPECT_EQ(rank.wrong(), 0);
    EXPECT_LT(files.bytes_read, total / 4);
  }
}

TEST_P(Layouts, OnlyWhoNeedsADamagedChunkFails) {
  MemoryFiles files;
  std::vector<Rank> saved = ranks_of(model_, {.dp = 4, .zero = 1});
  save_all(saved, files, 1, kChunkBytes);
  const std::string file = std::string(kRun) + "/ckpt/" + step_name(1) + "/" + shard_name(2, 0);
  std::string* bytes = files.bytes(file);
  ASSERT_NE(bytes, nullptr);
  bytes->back() ^= 1;
  const auto reader = CheckpointReader::open(files, std::string(kRun) + "/ckpt/" + step_name(1)).value();
  int failed = 0;
  for (Rank& rank : ranks_of(model_, {.dp = 4, .zero = 1})) {
    const auto status = rank.load(*reader);
    if (status.ok()) continue;
    ++failed;
    EXPECT_EQ(rank.shape().mesh.rank(), 2);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(file));
  }
  EXPECT_EQ(failed, 1);
  bytes->resize(bytes->size() - 1);
  const auto latest = find_latest(files, kRun, Depth::kManifest).value();
  EXPECT_EQ(latest.checkpoint, nullptr);
  ASSERT_EQ(latest.skipped.size(), 1u);
  EXPECT_THAT(std::string(latest.skipped[0].why.message()), HasSubstr(file));
}

TEST_P(Layouts, AnotherModelIsNamed) {
  MemoryFiles files;
  std::vector<Rank> one = ranks_of(model_, {});
  save_all(one, files, 1, kChunkBytes);
  const auto reader = CheckpointReader::open(files, std::string(kRun) + "/ckpt/" + step_name(1)).value();
  v1::ModelSpec wider = model_;
  wider.set_ffn(wider.ffn() + 1);
  const auto shape = check_has(*reader, tensors_of(model::parameter_groups(wider), kKinds));
  EXPECT_EQ(shape.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(shape.message()), HasSubstr("master layers.0."));
  EXPECT_THAT(std::string(shape.message()), HasSubstr(std::to_string(wider.ffn())));
  v1::ModelSpec deeper = model_;
  deeper.set_layers(deeper.layers() + 1);
  const auto missing = check_has(*reader, tensors_of(model::parameter_groups(deeper), kKinds));
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("layers." + std::to_string(deeper.layers() - 1)));
}

// Ranks that hold the same parts of the model write nearly as many bytes each, however odd the sizes.
TEST(ShareOf, IsEvenOverTheReplicas) {
  v1::ModelSpec model = gpt2();
  model.set_layers(3);
  model.set_hidden(96);
  model.set_ffn(251);
  model.set_vocab(1009);
  for (const Cut& cut : std::vector<Cut>{{.dp = 2},
                                         {.dp = 3},
                                         {.dp = 7},
                                         {.dp = 5, .zero = 2},
                                         {.dp = 8, .zero = 3},
                                         {.dp = 6, .zero = 1, .shard = 3},
                                         {.tp = 2, .dp = 3},
                                         {.tp = 4, .dp = 2, .zero = 1},
                                         {.pp = 3, .dp = 3},
                                         {.tp = 2, .pp = 2, .dp = 4, .zero = 3, .shard = 2}}) {
    const v1::JobSpec spec = spec_of(model, cut);
    std::map<std::pair<int, int>, std::vector<double>> bytes;  // By what is held alike: stage and slice.
    for (int rank = 0; rank < static_cast<int>(cut.tp * cut.pp * cut.dp); ++rank) {
      const auto mesh =
          parallel::Mesh::of_rank(rank, static_cast<int>(cut.dp), static_cast<int>(cut.pp), static_cast<int>(cut.tp));
      const plan::RunShape shape = plan::run_shape(spec, mesh);
      const int group = shape.sharded() ? shape.layout.shards().count : 1;
      double mine = 0;
      for (const Piece& piece : share_of(shape.layout, shape.pieces(), mesh.dp_size / group, mesh.dp / group)) {
        mine += 12.0 * static_cast<double>(piece.slice.count);
      }
      bytes[{mesh.pp, mesh.tp}].push_back(mine);
    }
    for (const auto& [held, of_ranks] : bytes) {
      const double most = *std::max_element(of_ranks.begin(), of_ranks.end());
      const double mean = std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0) / static_cast<double>(of_ranks.size());
      EXPECT_LE(most, 1.1 * mean) << cut << ", stage " << held.first << ", slice " << held.second;
      EXPECT_GT(mean, 0) << cut;
    }
  }
}

}  // namespace
}  // namespace telar::checkpoint
