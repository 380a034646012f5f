// Programs on the weights alone: their first values, and what follows from new ones.
#include "worker/model/random.h"
#include "worker/plan/programs.h"
#include "worker/plan/recording.h"

namespace telar::plan {

using backend::Kernels;
using engine::DType;
using engine::Tensor;
using parallel::Parameter;

namespace {

// The counters of elements [piece.first, ..) of a parameter's slice.
backend::RandomKey key_of(const Parameter& parameter, uint64_t seed, int64_t first) {
  backend::RandomKey key{seed, static_cast<uint32_t>(model::RandomPurpose::kInitialWeights),
                         model::tensor_stream(parameter.name)};
  key.offset = static_cast<uint64_t>(first);
  if (parameter.extent < 0) return key;
  if (parameter.shape.rank() == 2 && parameter.axis == 1) {
    key.first = static_cast<uint64_t>(parameter.first);
    key.row = static_cast<uint64_t>(parameter.extent);
    key.stride = static_cast<uint64_t>(parameter.shape[1]);
  } else {
    const int64_t columns = parameter.shape.rank() == 2 ? parameter.shape[1] : 1;
    key.first = static_cast<uint64_t>(parameter.first * columns);
  }
  return key;
}

}  // namespace

std::unique_ptr<InitProgram> record_init(const RunShape& shape) {
  auto init = std::make_unique<InitProgram>();
  init->masters = borrow(init->program, shape, "master", DType::kF32, state_extent(shape));
  for (const parallel::Piece& piece : shape.pieces()) {
    const Parameter& parameter = shape.layout.groups()[piece.group].parts[piece.part];
    const Tensor tensor = init->masters.range(static_cast<size_t>(piece.bucket), {piece.first, piece.slice.count});
    if (parameter.init == Parameter::Init::kNormal) {
      init->program.record(parameter.name, &Kernels::random_normal,
                           key_of(parameter, shape.spec.seed(), piece.slice.first), parameter.stddev, tensor.out());
    } else {
      const float value = parameter.init == Parameter::Init::kOnes ? 1.0f : 0.0f;
      init->program.record(parameter.name, &Kernels::fill, value, tensor.out());
    }
  }
  return init;
}

std::unique_ptr<RefreshProgram> record_refresh(const RunShape& shape) {
  auto refresh = std::make_unique<RefreshProgram>();
  refresh->masters = borrow(refresh->program, shape, "master", DType::kF32, state_extent(shape));
  refresh->weights = borrow(refresh->program, shape, "weights", shape.act, weight_extent(shape));
  parallel::Weights weights(refresh->program, shape.layout, shape.groups, shape.sharding, refresh->weights);
  for (size_t i = 0; i < shape.layout.buckets().size(); ++i) {
    const parallel::Range held = shape.sharded() ? shape.layout.shard(i) : shape.layout.whole(i);
    if (!shape.weights_are_masters()) {
      refresh->program.record("round." + std::to_string(i), &Kernels::cast, refresh->masters.range(i, held).in(),
                              refresh->weights.range(i, held).out());
    }
    weights.updated(i);
  }
  return refresh;
}

}  // namespace telar::plan
