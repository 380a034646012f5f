#include "worker/backend/cuda/sdpa.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/attention_kernels.h"
#include "worker/backend/cuda/errors.h"

namespace telar::backend::cuda {
namespace {

using Tensor = SdpaGraph::Tensor;
using Extents = SdpaGraph::Extents;

// Tensors that exist in memory. The last four are intermediates that cuDNN wants from us.
enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kLse,
  kDO,
  kDQ,
  kDK,
  kDV,
  kScale,
  kMaskValue,
  kOne,
  kDQSum,
  kDSum,
  kDKFull,
  kDVFull,
  kStartsOfDocuments,
  kForeignValue,
  kBiasMatrix
};

// For keys of other documents. Not infinity: a tile of nothing but such keys would then have no maximum. Scores that
// far below the others are exactly nothing once a key that counts is seen. The second is one that f16 holds.
constexpr float kForeign = -1e9f, kForeignBias = -30000.0f;

constexpr auto kFloat = CUDNN_DATA_FLOAT;

// Elements from row to row: cuDNN reads whole vectors.
int64_t bias_pitch(int64_t sequence) { return (sequence + 7) / 8 * 8; }

// The tensors of one shape, all seen as [batch, heads, sequence, head_dim]. Names that end in "transposed" have their
// last two dims swapped.
class Tensors {
 public:
  Tensors(SdpaGraph& graph, const AttentionDims& dims, DType dtype)
      : half(dtype == DType::kF16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16),
        graph_(graph),
        b_(dims.batch),
        h_(dims.heads),
        s_(dims.sequence),
        d_(dims.head_dim),
        row_((dims.heads + 2 * dims.kv_heads) * dims.head_dim) {}

  const cudnnDataType_t half;

  Extents packed_strides() const { return {s_ * row_, d_, row_, 1}; }
  Tensor packed(int64_t heads, int64_t uid) { return graph_.tensor(half, {b_, heads, s_, d_}, packed_strides(), uid); }
  Tensor packed_transposed(int64_t heads, int64_t uid) {
    return graph_.tensor(half, {b_, heads, d_, s_}, {s_ * row_, d_, 1, row_}, uid);
  }
  Tensor output(cudnnDataType_t type, int64_t uid) {
    return graph_.tensor(type, {b_, h_, s_, d_}, {s_ * h_ * d_, d_, h_ * d_, 1}, uid);
  }
  Tensor head_major(cudnnDataType_t type, int64_t uid) {
    return graph_.tensor(type, {b_, h_, s_, d_}, {h_ * s_ * d_, s_ * d_, d_, 1}, uid);
  }
  // One number a row of scores.
  Tensor rows(int64_t uid = SdpaGraph::kVirtual) {
    return graph_.tensor(kFloat, {b_, h_, s_, 1}, {h_ * s_, s_, 1, 1}, uid);
  }
  Tensor scores(cudnnDataType_t type = kFloat) {
    return graph_.tensor(type, {b_, h_, s_, s_}, {h_ * s_ * s_, s_ * s_, s_, 1});
  }
  Tensor scores_transposed() { return graph_.tensor(half, {b_, h_, s_, s_}, {h_ * s_ * s_, s_ * s_, 1, s_}); }

  // Scores where the key is not before the start of the query's document, else next to nothing.
  Tensor compared(Tensor scores_in) {
    Tensor key = graph_.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores_in, nullptr, scores(CUDNN_DATA_INT32), nullptr, 3);
    Tensor start = graph_.tensor(CUDNN_DATA_INT32, {b_, 1, s_, 1}, {s_, s_, 1, 1}, kStartsOfDocuments);
    Tensor keep = graph_.pointwise(CUDNN_POINTWISE_CMP_GE, key, start, scores(CUDNN_DATA_BOOLEAN));
    return graph_.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores_in, graph_.scalar(kForeignValue), scores(), keep);
  }
  // Scores plus what launch_document_bias() made.
  Tensor biased(Tensor scores_in) {
    const int64_t pitch = bias_pitch(s_);
    Tensor bias = graph_.tensor(half, {b_, 1, s_, s_}, {s_ * pitch, s_ * pitch, pitch, 1}, kBiasMatrix);
    return graph_.pointwise(CUDNN_POINTWISE_ADD, scores_in, bias, scores());
  }

  // Scores where the query's position is not before the key's, else the mask's value.
  Tensor masked(Tensor scores_in) {
    Tensor query =
        graph_.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores_in, nullptr, scores(CUDNN_DATA_INT32), nullptr, 2);
    Tensor key = graph_.pointwise(CUDNN_POINTWISE_GEN_INDEX, scores_in, nullptr, scores(CUDNN_DATA_INT32), nullptr, 3);
    Tensor keep = graph_.pointwise(CUDNN_POINTWISE_CMP_GE, query, key, scores(CUDNN_DATA_BOOLEAN));
    return graph_.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores_in, graph_.scalar(kMaskValue), scores(), keep);
  }

 private:
  SdpaGraph& graph_;
  const int64_t b_, h_, s_, d_, row_;
};

// a = mask(apart(scale q k^T)), where apart(tensors, scores) keeps documents apart; lse = log sum exp a; p = exp(a -
// lse); o = p v. cuDNN knows its kernel by this very pattern.
template <typename Apart>
void add_forward(SdpaGraph& g, const AttentionDims& dims, DType dtype, Apart apart) {
  Tensors t(g, dims, dtype);
  Tensor a = g.matmul(t.packed(dims.heads, kQ), t.packed_transposed(dims.kv_heads, kK), t.scores());
  a = t.masked(apart(t, g.pointwise(CUDNN_POINTWISE_MUL, a, g.scalar(kScale), t.scores())));
  Tensor maximum = g.reduce(CUDNN_REDUCE_TENSOR_MAX, a, t.rows());
  Tensor shifted = g.pointwise(CUDNN_POINTWISE_SUB, a, maximum, t.scores());
  Tensor e = g.pointwise(CUDNN_POINTWISE_EXP, shifted, nullptr, t.scores());
  Tensor sum = g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, t.rows());
  Tensor log_sum = g.pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, t.rows());
  g.pointwise(CUDNN_POINTWISE_ADD, maximum, log_sum, t.rows(kLse));
  Tensor p = g.pointwise(CUDNN_POINTWISE_DIV, e, sum, t.scores(t.half));
  g.matmul(p, t.packed(dims.kv_heads, kV), t.output(t.half, kO));
}

// dsum_i = sum_d dO_id O_id; dv = p^T dO; ds = scale p (dO v^T - dsum); dq = ds k; dk = ds^T q.
template <typename Apart>
void add_backward(SdpaGraph& g, const AttentionDims& dims, DType dtype, bool deterministic, Apart apart) {
  Tensors t(g, dims, dtype);
  Tensor q = t.packed(dims.heads, kQ), k_transposed = t.packed_transposed(dims.kv_heads, kK);
  Tensor v_transposed = t.packed_transposed(dims.kv_heads, kV);
  Tensor o = t.output(t.half, kO), d_o = t.output(t.half, kDO), lse = t.rows(kLse), scale = g.scalar(kScale);
  // The factor is one less the dropout rate; without it cuDNN does not recognise the pattern.
  Tensor d_o_o = g.pointwise(CUDNN_POINTWISE_MUL, d_o, o, t.output(kFloat, SdpaGraph::kVirtual));
  Tensor row_sum = g.reduce(CUDNN_REDUCE_TENSOR_ADD, d_o_o, t.rows());
  Tensor dsum = g.pointwise(CUDNN_POINTWISE_MUL, row_sum, g.scalar(kOne), t.rows(kDSum));

  Tensor a = g.pointwise(CUDNN_POINTWISE_MUL, g.matmul(q, k_transposed, t.scores()), scale, t.scores());
  a = apart(t, a);
  a = t.masked(g.pointwise(CUDNN_POINTWISE_SUB, a, lse, t.scores()));
  Tensor p = g.pointwise(CUDNN_POINTWISE_EXP, a, nullptr, t.scores());

  // left^T right for each query head, then the sum over the heads of a group.
  const auto grouped = [&](Tensor left_transposed, Tensor right, Uid full, Uid gradient) {
    if (dims.heads == dims.kv_heads) {
      g.matmul(left_transposed, right, t.packed(dims.kv_heads, gradient));
      return;
    }
    Tensor heads = g.matmul(left_transposed, right, t.head_major(t.half, full));
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, heads, t.packed(dims.kv_heads, gradient));
  };
  grouped(g.reshape(p, t.scores_transposed()), d_o, kDVFull, kDV);
  Tensor dp = g.pointwise(CUDNN_POINTWISE_SUB, g.matmul(d_o, v_transposed, t.scores()), dsum, t.scores());
  Tensor ds = g.pointwise(CUDNN_POINTWISE_MUL, dp, p, t.scores());
  ds = g.pointwise(CUDNN_POINTWISE_MUL, ds, scale, t.scores());
  grouped(g.reshape(ds, t.scores_transposed()), q, kDKFull, kDK);
  Tensor k = g.reshape(k_transposed,
                       g.tensor(kFloat, {dims.batch, dims.kv_heads, dims.sequence, dims.head_dim}, t.packed_strides()));
  if (deterministic) {
    g.matmul(ds, k, t.packed(dims.heads, kDQ));  // From ds in cuDNN's workspace, in order.
    return;
  }
  // Summed by atomics into dq_sum, which cuDNN clears itself.
  Tensor dq_sum = g.matmul(ds, k, t.head_major(kFloat, kDQSum));
  g.pointwise(CUDNN_POINTWISE_IDENTITY, dq_sum, nullptr, t.packed(dims.heads, kDQ));
}

// Addresses of queries, keys and values in a packed tensor.
struct Packed {
  Packed(std::byte* data, const AttentionDims& dims)
      : q(data), k(q + dims.heads * dims.head_dim * 2), v(k + dims.kv_heads * dims.head_dim * 2) {}
  std::byte *q, *k, *v;
};

size_t rounded_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

// What cuDNN reads on the host while a call is launched.
struct Scalars {
  explicit Scalars(const AttentionDims& dims) : scale(1.0f / std::sqrt(static_cast<float>(dims.head_dim))) {}
  float scale, mask_value = -std::numeric_limits<float>::infinity(), one = 1, foreign = kForeign;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Sdpa>> Sdpa::create(bool deterministic, Workspaces& workspaces) {
  cudnnHandle_t handle = nullptr;
  TELAR_RETURN_IF_ERROR(to_status(cudnnCreate(&handle), "cudnnCreate"));
  return std::unique_ptr<Sdpa>(new Sdpa(handle, deterministic, workspaces));
}

Sdpa::~Sdpa() {
  plans_.clear();
  cudnnDestroy(handle_);
}

// Very short sequences and very small heads are not worth cuDNN's tiles, and the stand-in is exact there.
bool Sdpa::takes(const AttentionDims& dims, DType dtype) {
  return (dtype == DType::kBF16 || dtype == DType::kF16) && dims.head_dim % 8 == 0 && dims.head_dim >= 32 &&
         dims.head_dim <= 256 && dims.sequence >= 64;
}

absl::StatusOr<SdpaGraph*> Sdpa::plan_for(cudaStream_t stream, const AttentionDims& dims, DType dtype,
                                          Variant variant) {
  const Key key{dtype, dims.batch, dims.sequence, dims.heads, dims.kv_heads, dims.head_dim, variant};
  const absl::Status none = absl::UnimplementedError("cuDNN has no kernel for this attention");
  if (const auto found = plans_.find(key); found != plans_.end()) {
    if (found->second == nullptr) return none;
    return found->second.get();
  }
  if (is_capturing(stream)) {
    return absl::FailedPreconditionError(absl::StrCat("attention of batch ", dims.batch, ", sequence ", dims.sequence,
                                                      ": first call while its stream is captured"));
  }
  auto graph = std::make_unique<SdpaGraph>();
  const auto apart = [borders = variant.borders](Tensors& t, Tensor scores) {
    if (borders == Borders::kStarts) return t.compared(scores);
    return borders == Borders::kBias ? t.biased(scores) : scores;
  };
  if (variant.backward) {
    add_backward(*graph, dims, dtype, deterministic_, apart);
  } else {
    add_forward(*graph, dims, dtype, apart);
  }
  absl::Status status = graph->build(handle_);
  // A pattern that cuDNN does not know of may be refused in other words.
  if (variant.borders != Borders::kNone && !status.ok()) status = none;
  if (absl::IsUnimplemented(status)) {
    plans_[key] = nullptr;
    return none;
  }
  if (!status.ok()) return status;
  return (plans_[key] = std::move(graph)).get();
}

// A part's statistics and starts are aligned to 16 bytes, as the plan has them.
int64_t Sdpa::part_of(const AttentionDims& dims, Variant variant) const {
  int64_t one = 0;  // Bytes of a sequence.
  if (variant.backward && deterministic_) one = 2 * dims.heads * dims.sequence * dims.sequence;
  if (variant.borders == Borders::kBias) one = std::max(one, 2 * dims.sequence * bias_pitch(dims.sequence));
  if (one == 0) return dims.batch;
  const int64_t aligned = variant.borders == Borders::kStarts ? dims.sequence : dims.heads * dims.sequence;
  const int64_t unit = aligned % 4 == 0 ? 1 : 4;
  return std::min(dims.batch, std::max<int64_t>(kScoreBytes / one / unit, 1) * unit);
}

absl::StatusOr<std::vector<Sdpa::Part>> Sdpa::parts_of(cudaStream_t stream, const AttentionDims& dims, DType dtype,
                                                       Variant variant) {
  std::vector<Part> parts;
  for (int64_t first = 0; first < dims.batch; first += parts.back().dims.batch) {
    Part part{nullptr, variant.borders, dims, first};
    part.dims.batch = std::min(part_of(dims, variant), dims.batch - first);
    const absl::StatusOr<SdpaGraph*> plan = plan_for(stream, part.dims, dtype, variant);
    if (!plan.ok()) return plan.status();
    part.plan = *plan;
    parts.push_back(part);
  }
  return parts;
}

absl::StatusOr<std::vector<Sdpa::Part>> Sdpa::parts_of(cudaStream_t stream, const AttentionDims& dims, DType dtype,
                                                       bool backward, const int32_t* starts) {
  if (starts == nullptr) return parts_of(stream, dims, dtype, {backward, Borders::kNone});
  if (reinterpret_cast<uintptr_t>(starts) % 16 == 0) {
    auto parts = parts_of(stream, dims, dtype, {backward, Borders::kStarts});
    if (!absl::IsUnimplemented(parts.status())) return parts;
  }
  return parts_of(stream, dims, dtype, {backward, Borders::kBias});
}

absl::Status Sdpa::forward(cudaStream_t stream, const AttentionDims& dims, In qkv, const int32_t* starts, Out o,
                           Out lse) {
  const std::lock_guard lock(mutex_);
  const absl::StatusOr<std::vector<Part>> parts = parts_of(stream, dims, qkv.dtype, false, starts);
  if (!parts.ok()) return parts.status();
  TELAR_RETURN_IF_ERROR(to_status(cudnnSetStream(handle_, stream), "cudnnSetStream"));
  for (const Part& part : *parts) TELAR_RETURN_IF_ERROR(forward_part(stream, part, qkv, starts, o, lse));
  return absl::OkStatus();
}

absl::Status Sdpa::backward(cudaStream_t stream, const AttentionDims& dims, In qkv, const int32_t* starts, In o, In lse,
                            In d_o, Out dqkv) {
  const std::lock_guard lock(mutex_);
  const absl::StatusOr<std::vector<Part>> parts = parts_of(stream, dims, qkv.dtype, true, starts);
  if (!parts.ok()) return parts.status();
  TELAR_RETURN_IF_ERROR(to_status(cudnnSetStream(handle_, stream), "cudnnSetStream"));
  for (const Part& part : *parts) {
    TELAR_RETURN_IF_ERROR(backward_part(stream, part, qkv, starts, o, lse, d_o, dqkv));
  }
  return absl::OkStatus();
}

namespace {

// Of one part; none where it needs none.
size_t bias_bytes(const AttentionDims& dims, bool is_needed) {
  if (!is_needed) return 0;
  return rounded_up(static_cast<size_t>(dims.batch * dims.sequence * bias_pitch(dims.sequence)) * 2);
}

absl::Status make_bias(cudaStream_t stream, const AttentionDims& dims, DType dtype, const int32_t* starts,
                       std::byte* bias) {
  return to_status(launch_document_bias(stream, dims, bias_pitch(dims.sequence), dtype, starts, kForeignBias, bias),
                   "attention: bias");
}

void* for_device(const int32_t* starts) { return const_cast<int32_t*>(starts); }

}  // namespace

absl::Status Sdpa::forward_part(cudaStream_t stream, const Part& part, In qkv, const int32_t* starts, Out o, Out lse) {
  const AttentionDims& dims = part.dims;
  const size_t bias = bias_bytes(dims, part.borders == Borders::kBias);
  const auto scratch = workspaces_.get("attention", stream, bias + part.plan->workspace_bytes());
  if (!scratch.ok()) return scratch.status();
  if (starts != nullptr) starts += part.token();
  if (bias > 0) TELAR_RETURN_IF_ERROR(make_bias(stream, dims, qkv.dtype, starts, *scratch));
  Scalars scalars(dims);
  const int64_t width = (dims.heads + 2 * dims.kv_heads) * dims.head_dim;
  const Packed x(qkv.data + part.token() * width * 2, dims);
  return part.plan->execute(handle_,
                            {{kQ, x.q},
                             {kK, x.k},
                             {kV, x.v},
                             {kO, o.data + part.token() * dims.heads * dims.head_dim * 2},
                             {kLse, lse.data + part.token() * dims.heads * static_cast<int64_t>(sizeof(float))},
                             {kScale, &scalars.scale},
                             {kMaskValue, &scalars.mask_value},
                             {kStartsOfDocuments, for_device(starts)},
                             {kForeignValue, &scalars.foreign},
                             {kBiasMatrix, *scratch}},
                            *scratch + bias);
}

absl::Status Sdpa::backward_part(cudaStream_t stream, const Part& part, In qkv, const int32_t* starts, In o, In lse,
                                 In d_o, Out dqkv) {
  const AttentionDims& dims = part.dims;
  const auto rows = static_cast<size_t>(dims.batch * dims.heads * dims.sequence);
  const size_t elements = rows * static_cast<size_t>(dims.head_dim);
  const bool is_grouped = dims.heads != dims.kv_heads;
  const size_t dq_bytes = deterministic_ ? 0 : rounded_up(elements * 4), dsum_bytes = rounded_up(rows * 4);
  const size_t full_bytes = is_grouped ? rounded_up(elements * 2) : 0;
  const size_t bias = bias_bytes(dims, part.borders == Borders::kBias);
  const auto scratch = workspaces_.get("attention", stream,
                                       dq_bytes + dsum_bytes + 2 * full_bytes + bias + part.plan->workspace_bytes());
  if (!scratch.ok()) return scratch.status();
  std::byte *const dq_sum = *scratch, *const dsum = dq_sum + dq_bytes, *const dk_full = dsum + dsum_bytes;
  std::byte *const dv_full = dk_full + full_bytes, *const matrix = dv_full + full_bytes;
  if (starts != nullptr) starts += part.token();
  if (bias > 0) TELAR_RETURN_IF_ERROR(make_bias(stream, dims, qkv.dtype, starts, matrix));
  Scalars scalars(dims);
  const int64_t token = part.token(), width = (dims.heads + 2 * dims.kv_heads) * dims.head_dim;
  const int64_t packed_bytes = token * width * 2, output_bytes = token * dims.heads * dims.head_dim * 2;
  const Packed x(qkv.data + packed_bytes, dims), dx(dqkv.data + packed_bytes, dims);
  return part.plan->execute(handle_,
                            {{kQ, x.q},
                             {kK, x.k},
                             {kV, x.v},
                             {kO, o.data + output_bytes},
                             {kLse, lse.data + token * dims.heads * static_cast<int64_t>(sizeof(float))},
                             {kDO, d_o.data + output_bytes},
                             {kDQ, dx.q},
                             {kDK, dx.k},
                             {kDV, dx.v},
                             {kScale, &scalars.scale},
                             {kMaskValue, &scalars.mask_value},
                             {kOne, &scalars.one},
                             {kDQSum, dq_sum},
                             {kDSum, dsum},
                             {kDKFull, dk_full},
                             {kDVFull, dv_full},
                             {kStartsOfDocuments, for_device(starts)},
                             {kForeignValue, &scalars.foreign},
                             {kBiasMatrix, matrix}},
                            matrix + bias);
}

}  // namespace telar::backend::cuda
