// What a device can compute. No graph, no rank, no allocation in here: a kernel gets bound views and a stream.
//
// Shapes: T = tokens (batch * sequence), C = width of a row, V = vocabulary, H / K = query / key-value heads,
// D = head dimension. Activations ("act") are f32, bf16 or f16, all of one call alike, and so are weights ("w"), but
// bf16 and f16 do not meet; FP8 is f8e4m3 or f8e5m2; statistics, gradients of weights ("grad"), losses and scalars are
// f32. Sums are taken in f32 or better whatever the storage. What is beyond the storage's range is stored as an
// infinity. "accumulates" means that the result is added to what the InOut holds.
//
// Contract for every method: checks dtypes and shapes first and returns INVALID_ARGUMENT naming op, argument, got and
// wanted; then computes on `stream` without blocking on other streams, without allocating on the device. The CPU
// kernels have finished when they return. Deterministic: the same inputs give the same bits, for any thread count; on
// CUDA only with DeviceOptions::deterministic, else attention_backward adds with atomics and a product's algorithm is
// chosen by timing. Threads: one Kernels object may be called from several streams at once.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/backend/view.h"

namespace telar::backend {

class Stream;

// Packed projections: qkv is [T, (H + 2K) * D], a row holds H queries, then K keys, then K values.
struct AttentionDims {
  int64_t batch = 0;
  int64_t sequence = 0;  // T = batch * sequence
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

// What a rank of a tensor-parallel group holds of a vocabulary: rows (of a table) or columns (of logits) [0, count) are
// ids [first, first + count) of `vocab` ids, further ones are padding. {0, V, V} is the whole; count may be 0.
struct VocabSlice {
  int64_t first = 0;
  int64_t count = 0;
  int64_t vocab = 0;
};

// Documents that stand in one sequence without seeing each other. `starts`: i32 [T], of each token the place in its
// sequence at which its document starts: 0 <= starts[t] <= t % sequence, never falling along a sequence (on the CPU
// else INVALID_ARGUMENT). Positions then count from there, and keys before it are not seen. Absent: 0.

// Counter-based randomness (Philox4x32-10, Salmon et al. 2011): element i of tensor `tensor` under `seed` is the same
// in every layout. A rank holds a slice of the tensor, and the view is part of the flattened slice: its element n is
// element m = offset + n of the slice, and of the tensor first + m, or first + m / row * stride + m % row unless row is
// 0.
struct RandomKey {
  uint64_t seed = 0;
  uint32_t purpose = 0;  // See worker/model/random.h.
  uint32_t tensor = 0;   // Which logical tensor.
  uint64_t first = 0;    // Global index of the slice's element 0.
  uint64_t row = 0;      // Elements of each of the slice's rows; 0: the slice is contiguous in the tensor.
  uint64_t stride = 0;   // From the start of one row to that of the next, in the tensor; at least `row`.
  uint64_t offset = 0;   // Of the view's first element in the flattened slice.
};

struct AdamWParams {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
};

// What the optimizer counts, and how it moves the loss scale (Micikevicius et al. 2018, with the schedule that is
// common since). The defaults leave the scale where it is.
struct StepParams {
  double beta1 = 0.9;
  double beta2 = 0.95;
  float growth_factor = 1;      // After growth_interval applied steps in a row, up to max_loss_scale.
  float backoff_factor = 1;     // After a skipped step, down to min_loss_scale.
  int64_t growth_interval = 1;  // Below 2^24.
  float min_loss_scale = 1;
  float max_loss_scale = 1;
};

// Layout of the f32 vector that the optimizer keeps from step to step: kStepStates elements. Counts stop at 2^24, far
// beyond where a bias correction is 1.
enum StepState : int {
  kLossScale = 0,
  kAppliedSteps = 1,  // Adam's t.
  kGoodSteps = 2,     // Applied since the last skipped step or growth.
  kSkippedSteps = 3,  // Of the whole run.
  kSkipped = 4,       // 1 if the last step was, else 0.
  kStepStates = 8
};

// Layout of the f32 vector of per-step scalars: the host writes the learning rate before a step, advance_step() the
// bias corrections. kStepScalars elements.
enum StepScalar : int { kLearningRate = 0, kBiasCorrection1 = 1, kBiasCorrection2 = 2, kStepScalars = 4 };

class Kernels {
 public:
  virtual ~Kernels() = default;

  // --- Plain memory -------------------------------------------------------------------------------------------
  virtual absl::Status fill(Stream&, float value, Out x) = 0;  // Any float dtype; i32 rounds.
  virtual absl::Status copy(Stream&, In x, Out y) = 0;         // Same dtype and element count.
  virtual absl::Status cast(Stream&, In x, Out y) = 0;         // Between float dtypes, round to nearest even.
  virtual absl::Status add(Stream&, In a, In b, Out y) = 0;    // act: y = a + b. y may be a or b.
  virtual absl::Status random_normal(Stream&, RandomKey, float stddev, Out x) = 0;  // Box-Muller on Philox pairs.

  // --- Embedding ----------------------------------------------------------------------------------------------
  // y[t] = table[ids[t] - slice.first], 0 where the id is of another slice (+ positions[t % sequence - starts[t]]
  // unless absent). ids: i32 [T]; table: w [>= slice.count, C]; positions: w [>= sequence, C]; y: act [T, C]. An id
  // outside [0, slice.vocab) is INVALID_ARGUMENT on the CPU.
  virtual absl::Status embedding(Stream&, In ids, const VocabSlice& slice, In table, In positions, In starts,
                                 int64_t sequence, Out y) = 0;
  // Accumulates dtable [>= slice.count, C], with the ids of the slice, and dpositions (absent or [>= sequence, C]),
  // with all, both grad, in a fixed order.
  virtual absl::Status embedding_backward(Stream&, In ids, const VocabSlice& slice, In dy, In starts, int64_t sequence,
                                          InOut dtable, InOut dpositions) = 0;

  // --- Linear: weights are [out, in] ---------------------------------------------------------------------------
  // y[T, N] = x[T, K] w[N, K]^T + bias[N] (unless absent). y may be f32 where x and w are bf16 (logits).
  virtual absl::Status linear(Stream&, In x, In weight, In bias, Out y) = 0;
  // before = x weight^T + bias (unless absent); after = gelu(before), of `before` as stored or not yet rounded. Both
  // act [T, N], for the backward wants `before`.
  virtual absl::Status linear_gelu(Stream&, In x, In weight, In bias, Out before, Out after) = 0;
  // dx[T, K] = dy[T, N] w[N, K].
  virtual absl::Status linear_dgrad(Stream&, In dy, In weight, Out dx) = 0;
  // dweight[N, K] = dy[T, N]^T x[T, K] in f32, added to what dweight holds if `accumulate`; else that is not looked at
  // (it may be NaN). dbias[N] (unless absent) += column sums of dy, in either case.
  virtual absl::Status linear_wgrad(Stream&, In dy, In x, bool accumulate, InOut dweight, InOut dbias) = 0;

  // sums (grad [C]) accumulates the column sums of x [T, C]: the gradient of a bias.
  virtual absl::Status column_sums(Stream&, In x, InOut sums) = 0;

  // --- FP8 ------------------------------------------------------------------------------------------------------
  // amax[1] (f32) = the greatest |x| of an act; NaN if there is one in x. Where known[0] (f32 [1], unless absent) is
  // above 0, that, and x is not looked at.
  virtual absl::Status amax(Stream&, In x, In known, Out amax) = 0;
  // x [T, C] times fp8_scale(amax) (see fp8.h), rounded to FP8: as it is (rows [T, C]) and transposed (columns [C, T]),
  // of which one may be absent; and what that is to be multiplied by again, inverse_scale[1] (f32). Where amax is not
  // finite all of it is NaN, so that whatever is made of it shows. Values beyond amax saturate; an infinity is NaN.
  // seen[1] (f32, unless absent) becomes the greater one of itself and the greatest |x|, for which NaN is an infinity.
  virtual absl::Status quantize(Stream&, In x, In amax, Out rows, Out columns, Out inverse_scale, InOut seen) = 0;
  // amax[N] (f32) = `margin` times the greatest of each row of history [N, L], or, if `newest`, its first.
  virtual absl::Status history_amax(Stream&, In history, bool newest, float margin, Out amax) = 0;
  // Each finite amax[n] goes in front of row n of history [N, L], whose last entry falls out; the other rows stay.
  virtual absl::Status push_history(Stream&, In amax, InOut history) = 0;
  // y [C, T] (FP8) = x [T, C] (the same) transposed.
  virtual absl::Status transpose(Stream&, In x, Out y) = 0;
  // inverses [N, 4] (f32): in each row the inverse of fp8_scale(amax[n]) for E4M3, and zeros.
  virtual absl::Status inverse_scales(Stream&, In amax, Out inverses) = 0;
  // As quantize(), but each copy in blocks of 128, each by its own greatest magnitude of now: runs along the copy's
  // rows or, if `square`, squares, which both copies have alike. Inverse scales as fp8.h says, absent where the copy
  // is.
  virtual absl::Status quantize_blocks(Stream&, In x, bool square, Out rows, Out rows_inverse, Out columns,
                                       Out columns_inverse) = 0;
  // y[M, N] = a[M, R] b[N, R]^T + bias[N] (unless absent), each operand times its inverse scales (see fp8.h): of both
  // as a whole, or of both in blocks, a's in runs. a, b: FP8, not both E5M2; y: bf16 or f32; bias: bf16. N and R are
  // multiples of 16. `fast`: tensor cores may keep sums in fewer bits than f32 has, but with blocks.
  virtual absl::Status fp8_product(Stream&, In a, In a_inverse, In b, In b_inverse, In bias, bool fast, Out y) = 0;
  // The same into dweight[M, N] in f32, never fast, added to what it holds if `accumulate`; else that is not looked at.
  virtual absl::Status fp8_wgrad(Stream&, In a, In a_inverse, In b, In b_inverse, bool accumulate, InOut dweight) = 0;

  // --- Norms, with the residual add in front -------------------------------------------------------------------
  // sum = residual + delta (delta absent: sum must be absent too and residual is normed itself);
  // y = norm(sum) * weight (+ bias). All act [T, C]; weight, bias: w [C]; mean, rstd: f32 [T]; amax (f32 [1], unless
  // absent): what amax() says of y.
  virtual absl::Status layer_norm(Stream&, In residual, In delta, In weight, In bias, float epsilon, Out sum, Out y,
                                  Out mean, Out rstd, Out amax) = 0;
  // x is the normed input (`sum`). Accumulates dx += d norm / dx, and dweight, dbias (grad).
  virtual absl::Status layer_norm_backward(Stream&, In dy, In x, In weight, In mean, In rstd, InOut dx, InOut dweight,
                                           InOut dbias) = 0;
  virtual absl::Status rms_norm(Stream&, In residual, In delta, In weight, float epsilon, Out sum, Out y, Out rstd,
                                Out amax) = 0;
  virtual absl::Status rms_norm_backward(Stream&, In dy, In x, In weight, In rstd, InOut dx, InOut dweight) = 0;

  // --- Activations of the MLP -----------------------------------------------------------------------------------
  // GELU, tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
  // amax (f32 [1], unless absent), here and below: what amax() says of the result.
  virtual absl::Status gelu(Stream&, In x, Out y, Out amax) = 0;
  // dbias (grad [C], unless absent) accumulates the column sums of dx as stored.
  virtual absl::Status gelu_backward(Stream&, In dy, In x, Out dx, InOut dbias, Out amax) = 0;
  // y[T, F] = silu(gate) * up, where a row of gate_up [T, 2F] holds F gates, then F ups.
  virtual absl::Status swiglu(Stream&, In gate_up, Out y, Out amax) = 0;
  virtual absl::Status swiglu_backward(Stream&, In dy, In gate_up, Out dgate_up, Out amax) = 0;

  // --- Attention ------------------------------------------------------------------------------------------------
  // Rotates queries and keys of packed qkv in place, half-split pairs (i, i + D/2) as in Hugging Face Llama.
  // table: f32 [sequence, D], a row holds D/2 cosines, then D/2 sines. The backward rotates by the negative angle.
  virtual absl::Status rope(Stream&, const AttentionDims&, In table, In starts, InOut qkv) = 0;
  virtual absl::Status rope_backward(Stream&, const AttentionDims&, In table, In starts, InOut dqkv) = 0;
  // Causal softmax(q k^T / sqrt(D)) v over keys [starts[t], t % sequence], never storing the sequence x sequence
  // matrix. qkv: act [T, (H + 2K) D]; o: act [T, H D]; lse: f32 [batch, H, sequence], log of the sum of exponentials.
  virtual absl::Status attention(Stream&, const AttentionDims&, In qkv, In starts, Out o, Out lse) = 0;
  virtual absl::Status attention_backward(Stream&, const AttentionDims&, In qkv, In starts, In o, In lse, In d_o,
                                          Out dqkv) = 0;

  // --- Loss -----------------------------------------------------------------------------------------------------
  // count[1] (f32) accumulates the number of targets >= 0. targets: i32 [T], -1 = not counted.
  virtual absl::Status count_valid(Stream&, In targets, InOut count) = 0;
  // Accumulates loss[1] += sum over valid targets of -log softmax(logits)[target] / count[0], and overwrites
  // logits (act [T, Vp], only the first `vocab` columns count) with loss_scale[0] d loss / d logits; padding columns
  // and rows without a target become 0. loss_scale: f32 [1]; absent: 1.
  virtual absl::Status cross_entropy(Stream&, In targets, In count, In loss_scale, int64_t vocab, InOut logits,
                                     InOut loss) = 0;
  // As above, forward only: logits stay.
  virtual absl::Status cross_entropy_loss(Stream&, In targets, In count, int64_t vocab, In logits, InOut loss) = 0;
  // The same over logits that ranks hold slices of, in two steps. First, what others need to know of a slice: parts
  // (f32 [3, T]) holds for each token the maximum of the slice's logits (act [T, >= slice.count]), the sum of e^(logit
  // - maximum), and the target's logit, 0 if that is of another slice or there is none. An empty slice has maximum -inf
  // and sum 0.
  virtual absl::Status softmax_parts(Stream&, In targets, const VocabSlice& slice, In logits, Out parts) = 0;
  // Then cross_entropy() with parts of all slices, f32 [slices, 3, T] in the order of ranks, for the columns of this
  // slice. `loss` accumulates the whole loss, the same bits on every rank.
  virtual absl::Status cross_entropy_parts(Stream&, In targets, In count, In loss_scale, const VocabSlice& slice,
                                           In parts, InOut logits, InOut loss) = 0;
  // As above, forward only, for targets that softmax_parts() took.
  virtual absl::Status cross_entropy_loss_parts(Stream&, In targets, In count, In parts, InOut loss) = 0;

  // --- Optimizer ------------------------------------------------------------------------------------------------
  // sum[1] accumulates the sum of squares, in f64 inside and a fixed order.
  virtual absl::Status sum_squares(Stream&, In x, InOut sum) = 0;
  // sum_squares: of gradients that are loss_scale[0] times too large; absent: 1 time.
  // norm[1] = sqrt(sum_squares[0]) / loss_scale; scale[1] = min(1, max_norm / (norm + 1e-6)) / loss_scale, where
  // max_norm 0 does not clip. A norm that is not finite gives scale 0 (the update is skipped by adamw).
  virtual absl::Status clip_scale(Stream&, In sum_squares, In loss_scale, float max_norm, Out norm, Out scale) = 0;
  // Behind clip_scale: counts the step in state[kStepStates], as skipped if scale[0] is 0, moves the loss scale, and
  // writes step's bias corrections 1 - beta^t, where t counts applied steps only.
  virtual absl::Status advance_step(Stream&, const StepParams&, In scale, InOut state, InOut step) = 0;
  // Decoupled weight decay (Loshchilov & Hutter 2019) on f32 master, exp_avg, exp_avg_sq; weight (absent or act dtype)
  // gets the rounded master. step: f32 [kStepScalars], see StepScalar. g = grad * scale[0]; scale 0 changes nothing.
  virtual absl::Status adamw(Stream&, const AdamWParams&, In grad, In scale, In step, InOut master, InOut exp_avg,
                             InOut exp_avg_sq, Out weight) = 0;
};

}  // namespace telar::backend
