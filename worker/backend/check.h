// What every backend asks of a kernel's arguments before it computes, so that all refuse the same calls in the same
// words: "layer_norm: weight: got f32 [8], wanted f32 or bf16 or f16 [16]". One function a method of Kernels, same
// arguments.
//
// Matrices are compared as rows x columns and vectors by element count: [2, 3, 8] passes as [6, 8]. A tensor without
// elements is refused except in elementwise ops, where it is nothing to do. Values (ids, targets) are not looked at:
// they may live on a device; the CPU kernels check them on their own.
#pragma once

#include "absl/status/status.h"
#include "worker/backend/kernels.h"
#include "worker/backend/view.h"

namespace telar::backend {

absl::Status check_fill(Out x);
absl::Status check_copy(In x, Out y);
absl::Status check_cast(In x, Out y);
absl::Status check_add(In a, In b, Out y);
absl::Status check_random_normal(const RandomKey& key, float stddev, Out x);

absl::Status check_embedding(In ids, const VocabSlice& slice, In table, In positions, In starts, int64_t sequence,
                             Out y);
absl::Status check_embedding_backward(In ids, const VocabSlice& slice, In dy, In starts, int64_t sequence, InOut dtable,
                                      InOut dpositions);

absl::Status check_linear(In x, In weight, In bias, Out y);
absl::Status check_linear_gelu(In x, In weight, In bias, Out before, Out after);
absl::Status check_linear_dgrad(In dy, In weight, Out dx);
absl::Status check_linear_wgrad(In dy, In x, InOut dweight, InOut dbias);

absl::Status check_column_sums(In x, InOut sums);
absl::Status check_amax(In x, In known, Out amax);
absl::Status check_quantize(In x, In amax, Out rows, Out columns, Out inverse_scale, InOut seen);
absl::Status check_transpose(In x, Out y);
absl::Status check_inverse_scales(In amax, Out inverses);
absl::Status check_quantize_blocks(In x, bool square, Out rows, Out rows_inverse, Out columns, Out columns_inverse);
absl::Status check_history_amax(In history, Out amax);
absl::Status check_push_history(In amax, InOut history);
absl::Status check_fp8_product(In a, In a_inverse, In b, In b_inverse, In bias, Out y);
absl::Status check_fp8_wgrad(In a, In a_inverse, In b, In b_inverse, InOut dweight);

absl::Status check_layer_norm(In residual, In delta, In weight, In bias, Out sum, Out y, Out mean, Out rstd, Out amax);
absl::Status check_layer_norm_backward(In dy, In x, In weight, In mean, In rstd, InOut dx, InOut dweight, InOut dbias);
absl::Status check_rms_norm(In residual, In delta, In weight, Out sum, Out y, Out rstd, Out amax);
absl::Status check_rms_norm_backward(In dy, In x, In weight, In rstd, InOut dx, InOut dweight);

absl::Status check_gelu(In x, Out y, Out amax);
absl::Status check_gelu_backward(In dy, In x, Out dx, InOut dbias, Out amax);
absl::Status check_swiglu(In gate_up, Out y, Out amax);
absl::Status check_swiglu_backward(In dy, In gate_up, Out dgate_up, Out amax);

absl::Status check_rope(const char* op, const AttentionDims& dims, In table, In starts, InOut qkv);
absl::Status check_attention(const AttentionDims& dims, In qkv, In starts, Out o, Out lse);
absl::Status check_attention_backward(const AttentionDims& dims, In qkv, In starts, In o, In lse, In d_o, Out dqkv);

absl::Status check_count_valid(In targets, InOut count);
absl::Status check_cross_entropy(const char* op, In targets, In count, In loss_scale, int64_t vocab, const View& logits,
                                 InOut loss);
absl::Status check_softmax_parts(In targets, const VocabSlice& slice, In logits, Out parts);
absl::Status check_cross_entropy_parts(In targets, In count, In loss_scale, const VocabSlice& slice, In parts,
                                       InOut logits, InOut loss);
absl::Status check_cross_entropy_loss_parts(In targets, In count, In parts, InOut loss);

absl::Status check_sum_squares(In x, InOut sum);
absl::Status check_clip_scale(In sum_squares, In loss_scale, float max_norm, Out norm, Out scale);
absl::Status check_advance_step(const StepParams& params, In scale, InOut state, InOut step);
absl::Status check_adamw(In grad, In scale, In step, InOut master, InOut exp_avg, InOut exp_avg_sq, Out weight);

}  // namespace telar::backend
