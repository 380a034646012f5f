#include "worker/backend/cuda/sdpa.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
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
  kDVFull
};

constexpr auto kFloat = CUDNN_DATA_FLOAT;

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

// a = mask(scale q k^T); lse = log sum exp a; p = exp(a - lse); o = p v. cuDNN knows its kernel by this very pattern.
void add_forward(SdpaGraph& g, const AttentionDims& dims, DType dtype) {
  Tensors t(g, dims, dtype);
  Tensor a = g.matmul(t.packed(dims.heads, kQ), t.packed_transposed(dims.kv_heads, kK), t.scores());
  a = t.masked(g.pointwise(CUDNN_POINTWISE_MUL, a, g.scalar(kScale), t.scores()));
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
void add_backward(SdpaGraph& g, const AttentionDims& dims, DType dtype, bool deterministic) {
  Tensors t(g, dims, dtype);
  Tensor q = t.packed(dims.heads, kQ), k_transposed = t.packed_transposed(dims.kv_heads, kK);
  Tensor v_transposed = t.packed_transposed(dims.kv_heads, kV);
  Tensor o = t.output(t.half, kO), d_o = t.output(t.half, kDO), lse = t.rows(kLse), scale = g.scalar(kScale);
  // The factor is one less the dropout rate; without it cuDNN does not recognise the pattern.
  Tensor d_o_o = g.pointwise(CUDNN_POINTWISE_MUL, d_o, o, t.output(kFloat, SdpaGraph::kVirtual));
  Tensor row_sum = g.reduce(CUDNN_REDUCE_TENSOR_ADD, d_o_o, t.rows());
  Tensor dsum = g.pointwise(CUDNN_POINTWISE_MUL, row_sum, g.scalar(kOne), t.rows(kDSum));

  Tensor a = g.pointwise(CUDNN_POINTWISE_MUL, g.matmul(q, k_transposed, t.scores()), scale, t.scores());
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
  float scale, mask_value = -std::numeric_limits<float>::infinity(), one = 1;
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

absl::StatusOr<SdpaGraph*> Sdpa::plan_for(cudaStream_t stream, const AttentionDims& dims, DType dtype, bool backward) {
  const Key key{dtype, dims.batch, dims.sequence, dims.heads, dims.kv_heads, dims.head_dim, backward};
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
  if (backward) {
    add_backward(*graph, dims, dtype, deterministic_);
  } else {
    add_forward(*graph, dims, dtype);
  }
  const absl::Status status = graph->build(handle_);
  if (absl::IsUnimplemented(status)) {
    plans_[key] = nullptr;
    return none;
  }
  if (!status.ok()) return status;
  return (plans_[key] = std::move(graph)).get();
}

absl::Status Sdpa::forward(cudaStream_t stream, const AttentionDims& dims, In qkv, Out o, Out lse) {
  const std::lock_guard lock(mutex_);
  const absl::StatusOr<SdpaGraph*> plan = plan_for(stream, dims, qkv.dtype, false);
  if (!plan.ok()) return plan.status();
  const auto workspace = workspaces_.get("attention", stream, (*plan)->workspace_bytes());
  if (!workspace.ok()) return workspace.status();
  TELAR_RETURN_IF_ERROR(to_status(cudnnSetStream(handle_, stream), "cudnnSetStream"));
  Scalars scalars(dims);
  const Packed x(qkv.data, dims);
  return (*plan)->execute(handle_,
                          {{kQ, x.q},
                           {kK, x.k},
                           {kV, x.v},
                           {kO, o.data},
                           {kLse, lse.data},
                           {kScale, &scalars.scale},
                           {kMaskValue, &scalars.mask_value}},
                          *workspace);
}

// A part's statistics are aligned to 16 bytes, as the plan has them.
int64_t Sdpa::part_of(const AttentionDims& dims) const {
  if (!deterministic_) return dims.batch;
  const int64_t one = 2 * dims.heads * dims.sequence * dims.sequence;
  const int64_t unit = dims.heads * dims.sequence % 4 == 0 ? 1 : 4;
  return std::min(dims.batch, std::max<int64_t>(kScoreBytes / one / unit, 1) * unit);
}

absl::Status Sdpa::backward(cudaStream_t stream, const AttentionDims& dims, In qkv, In o, In lse, In d_o, Out dqkv) {
  const std::lock_guard lock(mutex_);
  AttentionDims part = dims, rest = dims;
  part.batch = part_of(dims);
  rest.batch = dims.batch % part.batch;
  // Both plans before anything is enqueued.
  const absl::StatusOr<SdpaGraph*> plan = plan_for(stream, part, qkv.dtype, true);
  if (!plan.ok()) return plan.status();
  const absl::StatusOr<SdpaGraph*> rest_plan = rest.batch == 0 ? *plan : plan_for(stream, rest, qkv.dtype, true);
  if (!rest_plan.ok()) return rest_plan.status();
  TELAR_RETURN_IF_ERROR(to_status(cudnnSetStream(handle_, stream), "cudnnSetStream"));
  int64_t first = 0;
  for (; first + part.batch <= dims.batch; first += part.batch) {
    TELAR_RETURN_IF_ERROR(backward_part(stream, **plan, part, first, qkv, o, lse, d_o, dqkv));
  }
  if (rest.batch == 0) return absl::OkStatus();
  return backward_part(stream, **rest_plan, rest, first, qkv, o, lse, d_o, dqkv);
}

absl::Status Sdpa::backward_part(cudaStream_t stream, const SdpaGraph& plan, const AttentionDims& dims, int64_t first,
                                 In qkv, In o, In lse, In d_o, Out dqkv) {
  const auto rows = static_cast<size_t>(dims.batch * dims.heads * dims.sequence);
  const size_t elements = rows * static_cast<size_t>(dims.head_dim);
  const bool is_grouped = dims.heads != dims.kv_heads;
  const size_t dq_bytes = deterministic_ ? 0 : rounded_up(elements * 4), dsum_bytes = rounded_up(rows * 4);
  const size_t full_bytes = is_grouped ? rounded_up(elements * 2) : 0;
  const auto scratch =
      workspaces_.get("attention", stream, dq_bytes + dsum_bytes + 2 * full_bytes + plan.workspace_bytes());
  if (!scratch.ok()) return scratch.status();
  std::byte *const dq_sum = *scratch, *const dsum = dq_sum + dq_bytes, *const dk_full = dsum + dsum_bytes;
  std::byte *const dv_full = dk_full + full_bytes, *const workspace = dv_full + full_bytes;
  Scalars scalars(dims);
  const int64_t token = first * dims.sequence, width = (dims.heads + 2 * dims.kv_heads) * dims.head_dim;
  const int64_t packed_bytes = token * width * 2, output_bytes = token * dims.heads * dims.head_dim * 2;
  const Packed x(qkv.data + packed_bytes, dims), dx(dqkv.data + packed_bytes, dims);
  return plan.execute(handle_,
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
                       {kDVFull, dv_full}},
                      workspace);
}

}  // namespace telar::backend::cuda
