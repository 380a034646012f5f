#include "worker/backend/check.h"

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/backend/fp8.h"

namespace telar::backend {

namespace {

// A set of element types.
class DTypes {
 public:
  constexpr DTypes(std::initializer_list<DType> dtypes) {
    for (DType dtype : dtypes) bits_ |= 1u << static_cast<int>(dtype);
  }
  bool holds(DType dtype) const { return (bits_ >> static_cast<int>(dtype) & 1u) != 0; }
  std::string to_string() const {  // "f32 or i32"
    std::string text;
    for (DType dtype :
         {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kU8, DType::kF8E4M3, DType::kF8E5M2}) {
      if (holds(dtype)) text += (text.empty() ? "" : " or ") + std::string(name_of(dtype));
    }
    return text;
  }

 private:
  uint32_t bits_ = 0;
};

constexpr DTypes kFloat{DType::kF32, DType::kBF16, DType::kF16};
constexpr DTypes kF32{DType::kF32};
constexpr DTypes kI32{DType::kI32};
constexpr DTypes kFp8{DType::kF8E4M3, DType::kF8E5M2};

// Keeps the first violation of one call.
class Check {
 public:
  explicit Check(const char* op) : op_(op) {}

  // rows x cols in the last extent; -1 = any, at least 1.
  Check& matrix(const char* argument, const View& view, const DTypes& dtypes, int64_t rows, int64_t cols) {
    const bool fits = view.elements() > 0 && (rows < 0 || view.rows() == rows) && (cols < 0 || view.cols() == cols);
    return demand(argument, view, dtypes, fits, absl::StrCat("[", extent(rows), ", ", extent(cols), "]"));
  }
  // So many elements in any shape; -1 = any, at least 1.
  Check& vector(const char* argument, const View& view, const DTypes& dtypes, int64_t elements) {
    const bool fits = elements < 0 ? view.elements() > 0 : view.elements() == elements;
    return demand(argument, view, dtypes, fits, absl::StrCat("[", extent(elements), "]"));
  }
  Check& optional_vector(const char* argument, const View& view, const DTypes& dtypes, int64_t elements) {
    return view.absent() ? *this : vector(argument, view, dtypes, elements);
  }
  // Elementwise: any shape, none included.
  Check& tensor(const char* argument, const View& view, const DTypes& dtypes) {
    return demand(argument, view, dtypes, true, "of any shape");
  }
  Check& same_type(const char* argument, const View& view, const char* other_argument, const View& other) {
    return rule(view.dtype == other.dtype, argument, name_of(view.dtype),
                absl::StrCat(std::string(name_of(other.dtype)), " as ", other_argument));
  }
  // bf16 and f16 do not meet in one call.
  Check& one_half(const char* argument, const View& view, const char* other_argument, const View& other) {
    const bool meet = !view.absent() && !other.absent() && view.dtype != other.dtype && view.dtype != DType::kF32 &&
                      other.dtype != DType::kF32;
    return rule(!meet, argument, name_of(view.dtype),
                absl::StrCat("f32 or ", std::string(name_of(other.dtype)), " as ", other_argument));
  }
  template <typename Got>
  Check& rule(bool holds, const char* argument, const Got& got, const std::string& wanted) {
    if (status_.ok() && !holds) {
      status_ =
          absl::InvalidArgumentError(absl::StrCat(op_, ": ", argument, ": got ", text_of(got), ", wanted ", wanted));
    }
    return *this;
  }
  absl::Status status() const { return status_; }
  bool ok() const { return status_.ok(); }

 private:
  static std::string extent(int64_t value) { return value < 0 ? "any" : absl::StrCat(value); }
  static std::string text_of(std::string_view text) { return std::string(text); }
  static std::string text_of(int64_t value) { return absl::StrCat(value); }
  static std::string text_of(float value) { return absl::StrCat(value); }

  Check& demand(const char* argument, const View& view, const DTypes& dtypes, bool fits, const std::string& shape) {
    if (!status_.ok()) return *this;
    const std::string wanted = absl::StrCat(dtypes.to_string(), " ", shape);
    if (view.absent()) return rule(false, argument, std::string_view("nothing"), wanted);
    const std::string got = absl::StrCat(std::string(name_of(view.dtype)), " ", view.shape.to_string());
    rule(dtypes.holds(view.dtype) && fits, argument, std::string_view(got), wanted);
    return rule(view.data != nullptr || view.elements() == 0, argument, std::string_view("no memory"), wanted);
  }

  const char* op_;
  absl::Status status_;
};

// The extents that later checks compare with: 0 unless they can be had, so that nothing divides by zero.
int64_t rows_of(const View& view) { return view.elements() > 0 ? view.rows() : 0; }
int64_t cols_of(const View& view) { return view.elements() > 0 ? view.cols() : 0; }

void check_dims(Check& check, const AttentionDims& dims) {
  check.rule(dims.batch > 0, "dims.batch", dims.batch, "at least 1")
      .rule(dims.sequence > 0, "dims.sequence", dims.sequence, "at least 1")
      .rule(dims.kv_heads > 0, "dims.kv_heads", dims.kv_heads, "at least 1")
      .rule(dims.heads > 0 && dims.kv_heads > 0 && dims.heads % dims.kv_heads == 0, "dims.heads", dims.heads,
            absl::StrCat("a multiple of dims.kv_heads = ", dims.kv_heads))
      .rule(dims.head_dim > 0, "dims.head_dim", dims.head_dim, "at least 1");
}

// `rows`: how many of `argument` there are for the slice, "rows" or "columns" of it.
void check_slice(Check& check, const VocabSlice& slice, const char* argument, int64_t rows, const char* what) {
  check.rule(slice.vocab > 0, "slice.vocab", slice.vocab, "at least 1")
      .rule(slice.count >= 0 && slice.count <= rows, "slice.count", slice.count,
            absl::StrCat("0 to ", argument, "'s ", rows, " ", what))
      .rule(slice.first >= 0 && slice.first <= slice.vocab - slice.count, "slice.first", slice.first,
            absl::StrCat("0 to slice.vocab - slice.count = ", slice.vocab - slice.count));
}

// Of one slice at least.
void check_parts(Check& check, const View& parts, int64_t tokens) {
  check.vector("parts", parts, kF32, -1)
      .rule(tokens > 0 && parts.elements() % (3 * tokens) == 0, "parts", parts.elements(),
            absl::StrCat("a multiple of 3 x ", tokens, " elements"));
}

int64_t qkv_width(const AttentionDims& dims) { return (dims.heads + 2 * dims.kv_heads) * dims.head_dim; }

// Of y = x w^T + bias: bf16 and f16 do not meet.
Check& one_half_of_all(Check& check, const In& x, const In& weight, const In& bias, const char* name, const Out& y) {
  return check.one_half("weight", weight, "x", x)
      .one_half("bias", bias, "x", x)
      .one_half("bias", bias, "weight", weight)
      .one_half(name, y, "x", x)
      .one_half(name, y, "weight", weight)
      .one_half(name, y, "bias", bias);
}

}  // namespace

absl::Status check_fill(Out x) {
  return Check("fill").tensor("x", x, {DType::kF32, DType::kBF16, DType::kF16, DType::kI32}).status();
}

absl::Status check_copy(In x, Out y) {
  constexpr DTypes all{DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kU8, DType::kF8E4M3, DType::kF8E5M2};
  return Check("copy").tensor("x", x, all).vector("y", y, all, x.elements()).same_type("y", y, "x", x).status();
}

absl::Status check_cast(In x, Out y) {
  return Check("cast").tensor("x", x, kFloat).vector("y", y, kFloat, x.elements()).status();
}

absl::Status check_add(In a, In b, Out y) {
  return Check("add")
      .tensor("a", a, kFloat)
      .vector("b", b, kFloat, a.elements())
      .same_type("b", b, "a", a)
      .vector("y", y, kFloat, a.elements())
      .same_type("y", y, "a", a)
      .status();
}

absl::Status check_random_normal(const RandomKey& key, float stddev, Out x) {
  return Check("random_normal")
      .tensor("x", x, kFloat)
      .rule(key.row == 0 || key.stride >= key.row, "key.stride", static_cast<int64_t>(key.stride),
            absl::StrCat("at least key.row = ", key.row))
      .rule(std::isfinite(stddev) && stddev >= 0, "stddev", stddev, "finite and at least 0")
      .status();
}

absl::Status check_embedding(In ids, const VocabSlice& slice, In table, In positions, In starts, int64_t sequence,
                             Out y) {
  Check check("embedding");
  const int64_t width = cols_of(table);
  check.vector("ids", ids, kI32, -1).matrix("table", table, kFloat, -1, -1);
  check_slice(check, slice, "table", rows_of(table), "rows");
  check.rule(sequence > 0, "sequence", sequence, "at least 1")
      .matrix("y", y, kFloat, ids.elements(), width)
      .one_half("y", y, "table", table);
  if (!positions.absent()) {
    check.matrix("positions", positions, kFloat, -1, width)
        .same_type("positions", positions, "table", table)
        .rule(rows_of(positions) >= sequence, "positions", rows_of(positions),
              absl::StrCat("at least sequence = ", sequence, " rows"));
  }
  check.optional_vector("starts", starts, kI32, ids.elements());
  return check.status();
}

absl::Status check_embedding_backward(In ids, const VocabSlice& slice, In dy, In starts, int64_t sequence, InOut dtable,
                                      InOut dpositions) {
  Check check("embedding_backward");
  const int64_t width = cols_of(dy);
  check.vector("ids", ids, kI32, -1).matrix("dy", dy, kFloat, ids.elements(), -1);
  check.rule(sequence > 0, "sequence", sequence, "at least 1").matrix("dtable", dtable, kF32, -1, width);
  check_slice(check, slice, "dtable", rows_of(dtable), "rows");
  if (!dpositions.absent()) {
    check.matrix("dpositions", dpositions, kF32, -1, width)
        .rule(rows_of(dpositions) >= sequence, "dpositions", rows_of(dpositions),
              absl::StrCat("at least sequence = ", sequence, " rows"));
  }
  check.optional_vector("starts", starts, kI32, ids.elements());
  return check.status();
}

absl::Status check_linear(In x, In weight, In bias, Out y) {
  Check check("linear");
  check.matrix("x", x, kFloat, -1, -1)
      .matrix("weight", weight, kFloat, -1, cols_of(x))
      .optional_vector("bias", bias, kFloat, rows_of(weight))
      .matrix("y", y, kFloat, rows_of(x), rows_of(weight));
  return one_half_of_all(check, x, weight, bias, "y", y).status();
}

absl::Status check_linear_gelu(In x, In weight, In bias, Out before, Out after) {
  Check check("linear_gelu");
  check.matrix("x", x, kFloat, -1, -1)
      .matrix("weight", weight, kFloat, -1, cols_of(x))
      .optional_vector("bias", bias, kFloat, rows_of(weight))
      .matrix("before", before, kFloat, rows_of(x), rows_of(weight))
      .matrix("after", after, kFloat, rows_of(x), rows_of(weight))
      .same_type("after", after, "before", before);
  return one_half_of_all(check, x, weight, bias, "before", before).status();
}

absl::Status check_linear_dgrad(In dy, In weight, Out dx) {
  return Check("linear_dgrad")
      .matrix("dy", dy, kFloat, -1, -1)
      .matrix("weight", weight, kFloat, cols_of(dy), -1)
      .matrix("dx", dx, kFloat, rows_of(dy), cols_of(weight))
      .one_half("weight", weight, "dy", dy)
      .one_half("dx", dx, "dy", dy)
      .one_half("dx", dx, "weight", weight)
      .status();
}

absl::Status check_linear_wgrad(In dy, In x, InOut dweight, InOut dbias) {
  return Check("linear_wgrad")
      .matrix("dy", dy, kFloat, -1, -1)
      .matrix("x", x, kFloat, rows_of(dy), -1)
      .one_half("x", x, "dy", dy)
      .matrix("dweight", dweight, kF32, cols_of(dy), cols_of(x))
      .optional_vector("dbias", dbias, kF32, cols_of(dy))
      .status();
}

absl::Status check_column_sums(In x, InOut sums) {
  return Check("column_sums").matrix("x", x, kFloat, -1, -1).vector("sums", sums, kF32, cols_of(x)).status();
}

absl::Status check_amax(In x, In known, Out amax) {
  return Check("amax")
      .vector("x", x, kFloat, -1)
      .optional_vector("known", known, kF32, 1)
      .vector("amax", amax, kF32, 1)
      .status();
}

absl::Status check_history_amax(In history, Out amax) {
  return Check("history_amax")
      .matrix("history", history, kF32, -1, -1)
      .vector("amax", amax, kF32, rows_of(history))
      .status();
}

absl::Status check_push_history(In amax, InOut history) {
  return Check("push_history")
      .matrix("history", history, kF32, -1, -1)
      .vector("amax", amax, kF32, rows_of(history))
      .status();
}

absl::Status check_quantize(In x, In amax, Out rows, Out columns, Out inverse_scale, InOut seen) {
  Check check("quantize");
  check.matrix("x", x, kFloat, -1, -1).vector("amax", amax, kF32, 1);
  check.rule(!rows.absent() || !columns.absent(), "rows", std::string_view("nothing"), "rows, columns or both");
  if (!rows.absent()) check.matrix("rows", rows, kFp8, rows_of(x), cols_of(x));
  if (!columns.absent()) check.matrix("columns", columns, kFp8, cols_of(x), rows_of(x));
  if (!rows.absent() && !columns.absent()) check.same_type("columns", columns, "rows", rows);
  return check.vector("inverse_scale", inverse_scale, kF32, 1).optional_vector("seen", seen, kF32, 1).status();
}

absl::Status check_transpose(In x, Out y) {
  return Check("transpose")
      .matrix("x", x, kFp8, -1, -1)
      .matrix("y", y, kFp8, cols_of(x), rows_of(x))
      .same_type("y", y, "x", x)
      .status();
}

absl::Status check_inverse_scales(In amax, Out inverses) {
  return Check("inverse_scales")
      .vector("amax", amax, kF32, -1)
      .matrix("inverses", inverses, kF32, amax.elements(), 4)
      .status();
}

absl::Status check_quantize_blocks(In x, bool square, Out rows, Out rows_inverse, Out columns, Out columns_inverse) {
  Check check("quantize_blocks");
  check.matrix("x", x, kFloat, -1, -1);
  check.rule(!rows.absent() || !columns.absent(), "rows", std::string_view("nothing"), "rows, columns or both");
  const auto copy = [&](const char* name, const Out& q, const char* inverse_name, const Out& inverse, int64_t height,
                        int64_t width) {
    check.rule(q.absent() == inverse.absent(), inverse_name,
               std::string_view(inverse.absent() ? "nothing" : "a tensor"),
               q.absent() ? "nothing, as its copy is absent" : "a tensor");
    if (q.absent() || inverse.absent()) return;
    const Shape shape = fp8_inverse_shape(square ? Fp8Scaled::kSquares : Fp8Scaled::kRuns, height, width);
    check.matrix(name, q, kFp8, height, width).matrix(inverse_name, inverse, kF32, shape[0], shape[1]);
  };
  copy("rows", rows, "rows_inverse", rows_inverse, rows_of(x), cols_of(x));
  copy("columns", columns, "columns_inverse", columns_inverse, cols_of(x), rows_of(x));
  if (!rows.absent() && !columns.absent()) check.same_type("columns", columns, "rows", rows);
  return check.status();
}

namespace {

// What has not the shape of any blocks is one number.
void check_inverse(Check& check, const char* name, const In& q, const In& inverse) {
  if (fp8_scaled(q, inverse) == Fp8Scaled::kWhole) {
    check.vector(name, inverse, kF32, 1);
  } else {
    check.matrix(name, inverse, kF32, -1, -1);
  }
}

void check_scaled(Check& check, const In& a, const In& a_inverse, const In& b, const In& b_inverse) {
  const std::string multiple = absl::StrCat("a multiple of ", kFp8Multiple);
  check.matrix("a", a, kFp8, -1, -1)
      .matrix("b", b, kFp8, -1, cols_of(a))
      .rule(a.dtype != DType::kF8E5M2 || b.dtype != DType::kF8E5M2, "b", name_of(b.dtype), "f8e4m3 beside f8e5m2 as a")
      .rule(cols_of(a) % kFp8Multiple == 0, "a", cols_of(a), absl::StrCat("columns that are ", multiple))
      .rule(rows_of(b) % kFp8Multiple == 0, "b", rows_of(b), absl::StrCat("rows that are ", multiple))
      .rule(fp8_scaled(a, a_inverse) != Fp8Scaled::kSquares, "a_inverse", a_inverse.shape.to_string(),
            "[1], or of runs of 128 along rows")
      .rule((fp8_scaled(a, a_inverse) == Fp8Scaled::kWhole) == (fp8_scaled(b, b_inverse) == Fp8Scaled::kWhole),
            "b_inverse", b_inverse.shape.to_string(), "blocks beside blocks as a_inverse, or [1] beside [1]");
  check_inverse(check, "a_inverse", a, a_inverse);
  check_inverse(check, "b_inverse", b, b_inverse);
}

}  // namespace

absl::Status check_fp8_product(In a, In a_inverse, In b, In b_inverse, In bias, Out y) {
  constexpr DTypes kResult{DType::kF32, DType::kBF16};
  Check check("fp8_product");
  check_scaled(check, a, a_inverse, b, b_inverse);
  return check.optional_vector("bias", bias, {DType::kBF16}, rows_of(b))
      .matrix("y", y, kResult, rows_of(a), rows_of(b))
      .status();
}

absl::Status check_fp8_wgrad(In a, In a_inverse, In b, In b_inverse, InOut dweight) {
  Check check("fp8_wgrad");
  check_scaled(check, a, a_inverse, b, b_inverse);
  return check.matrix("dweight", dweight, kF32, rows_of(a), rows_of(b)).status();
}

namespace {

void check_norm(Check& check, const In& residual, const In& delta, const In& weight, const Out& sum, const Out& y,
                const Out& rstd) {
  const int64_t rows = rows_of(residual), cols = cols_of(residual);
  check.matrix("residual", residual, kFloat, -1, -1).vector("weight", weight, kFloat, cols);
  check.one_half("weight", weight, "residual", residual);
  check.matrix("y", y, kFloat, rows, cols).same_type("y", y, "residual", residual).vector("rstd", rstd, kF32, rows);
  if (delta.absent()) {
    check.rule(sum.absent(), "sum", std::string_view("a tensor"), "nothing, as delta is absent");
    return;
  }
  check.matrix("delta", delta, kFloat, rows, cols).same_type("delta", delta, "residual", residual);
  check.matrix("sum", sum, kFloat, rows, cols).same_type("sum", sum, "residual", residual);
}

void check_norm_backward(Check& check, const In& dy, const In& x, const In& weight, const In& rstd, const InOut& dx,
                         const InOut& dweight) {
  const int64_t rows = rows_of(x), cols = cols_of(x);
  check.matrix("x", x, kFloat, -1, -1).matrix("dy", dy, kFloat, rows, cols).same_type("dy", dy, "x", x);
  check.vector("weight", weight, kFloat, cols).one_half("weight", weight, "x", x).vector("rstd", rstd, kF32, rows);
  check.matrix("dx", dx, kFloat, rows, cols).same_type("dx", dx, "x", x).vector("dweight", dweight, kF32, cols);
}

}  // namespace

absl::Status check_layer_norm(In residual, In delta, In weight, In bias, Out sum, Out y, Out mean, Out rstd, Out amax) {
  Check check("layer_norm");
  check_norm(check, residual, delta, weight, sum, y, rstd);
  return check.optional_vector("bias", bias, kFloat, cols_of(residual))
      .one_half("bias", bias, "residual", residual)
      .one_half("bias", bias, "weight", weight)
      .vector("mean", mean, kF32, rows_of(residual))
      .optional_vector("amax", amax, kF32, 1)
      .status();
}

absl::Status check_layer_norm_backward(In dy, In x, In weight, In mean, In rstd, InOut dx, InOut dweight, InOut dbias) {
  Check check("layer_norm_backward");
  check_norm_backward(check, dy, x, weight, rstd, dx, dweight);
  return check.vector("mean", mean, kF32, rows_of(x)).optional_vector("dbias", dbias, kF32, cols_of(x)).status();
}

absl::Status check_rms_norm(In residual, In delta, In weight, Out sum, Out y, Out rstd, Out amax) {
  Check check("rms_norm");
  check_norm(check, residual, delta, weight, sum, y, rstd);
  return check.optional_vector("amax", amax, kF32, 1).status();
}

absl::Status check_rms_norm_backward(In dy, In x, In weight, In rstd, InOut dx, InOut dweight) {
  Check check("rms_norm_backward");
  check_norm_backward(check, dy, x, weight, rstd, dx, dweight);
  return check.status();
}

absl::Status check_gelu(In x, Out y, Out amax) {
  return Check("gelu")
      .tensor("x", x, kFloat)
      .vector("y", y, kFloat, x.elements())
      .same_type("y", y, "x", x)
      .optional_vector("amax", amax, kF32, 1)
      .status();
}

absl::Status check_gelu_backward(In dy, In x, Out dx, InOut dbias, Out amax) {
  return Check("gelu_backward")
      .tensor("x", x, kFloat)
      .vector("dy", dy, kFloat, x.elements())
      .same_type("dy", dy, "x", x)
      .vector("dx", dx, kFloat, x.elements())
      .same_type("dx", dx, "x", x)
      .optional_vector("dbias", dbias, kF32, cols_of(dx))
      .optional_vector("amax", amax, kF32, 1)
      .status();
}

absl::Status check_swiglu(In gate_up, Out y, Out amax) {
  return Check("swiglu")
      .matrix("gate_up", gate_up, kFloat, -1, -1)
      .rule(cols_of(gate_up) % 2 == 0, "gate_up", cols_of(gate_up), "an even number of columns")
      .matrix("y", y, kFloat, rows_of(gate_up), cols_of(gate_up) / 2)
      .same_type("y", y, "gate_up", gate_up)
      .optional_vector("amax", amax, kF32, 1)
      .status();
}

absl::Status check_swiglu_backward(In dy, In gate_up, Out dgate_up, Out amax) {
  return Check("swiglu_backward")
      .matrix("gate_up", gate_up, kFloat, -1, -1)
      .rule(cols_of(gate_up) % 2 == 0, "gate_up", cols_of(gate_up), "an even number of columns")
      .matrix("dy", dy, kFloat, rows_of(gate_up), cols_of(gate_up) / 2)
      .same_type("dy", dy, "gate_up", gate_up)
      .matrix("dgate_up", dgate_up, kFloat, rows_of(gate_up), cols_of(gate_up))
      .same_type("dgate_up", dgate_up, "gate_up", gate_up)
      .optional_vector("amax", amax, kF32, 1)
      .status();
}

absl::Status check_rope(const char* op, const AttentionDims& dims, In table, In starts, InOut qkv) {
  Check check(op);
  check_dims(check, dims);
  check.optional_vector("starts", starts, kI32, dims.batch * dims.sequence);
  return check.rule(dims.head_dim % 2 == 0, "dims.head_dim", dims.head_dim, "an even number")
      .matrix("table", table, kF32, dims.sequence, dims.head_dim)
      .matrix("qkv", qkv, kFloat, dims.batch * dims.sequence, qkv_width(dims))
      .status();
}

absl::Status check_attention(const AttentionDims& dims, In qkv, In starts, Out o, Out lse) {
  Check check("attention");
  check_dims(check, dims);
  check.optional_vector("starts", starts, kI32, dims.batch * dims.sequence);
  const int64_t tokens = dims.batch * dims.sequence;
  return check.matrix("qkv", qkv, kFloat, tokens, qkv_width(dims))
      .matrix("o", o, kFloat, tokens, dims.heads * dims.head_dim)
      .same_type("o", o, "qkv", qkv)
      .vector("lse", lse, kF32, tokens * dims.heads)
      .status();
}

absl::Status check_attention_backward(const AttentionDims& dims, In qkv, In starts, In o, In lse, In d_o, Out dqkv) {
  Check check("attention_backward");
  check_dims(check, dims);
  check.optional_vector("starts", starts, kI32, dims.batch * dims.sequence);
  const int64_t tokens = dims.batch * dims.sequence;
  return check.matrix("qkv", qkv, kFloat, tokens, qkv_width(dims))
      .matrix("o", o, kFloat, tokens, dims.heads * dims.head_dim)
      .same_type("o", o, "qkv", qkv)
      .vector("lse", lse, kF32, tokens * dims.heads)
      .matrix("d_o", d_o, kFloat, tokens, dims.heads * dims.head_dim)
      .same_type("d_o", d_o, "qkv", qkv)
      .matrix("dqkv", dqkv, kFloat, tokens, qkv_width(dims))
      .same_type("dqkv", dqkv, "qkv", qkv)
      .status();
}

absl::Status check_count_valid(In targets, InOut count) {
  return Check("count_valid").vector("targets", targets, kI32, -1).vector("count", count, kF32, 1).status();
}

absl::Status check_cross_entropy(const char* op, In targets, In count, In loss_scale, int64_t vocab, const View& logits,
                                 InOut loss) {
  return Check(op)
      .vector("targets", targets, kI32, -1)
      .vector("count", count, kF32, 1)
      .optional_vector("loss_scale", loss_scale, kF32, 1)
      .matrix("logits", logits, kFloat, targets.elements(), -1)
      .rule(vocab > 0 && vocab <= cols_of(logits), "vocab", vocab,
            absl::StrCat("1 to logits' ", cols_of(logits), " columns"))
      .vector("loss", loss, kF32, 1)
      .status();
}

absl::Status check_softmax_parts(In targets, const VocabSlice& slice, In logits, Out parts) {
  Check check("softmax_parts");
  check.vector("targets", targets, kI32, -1).matrix("logits", logits, kFloat, targets.elements(), -1);
  check_slice(check, slice, "logits", cols_of(logits), "columns");
  return check.vector("parts", parts, kF32, 3 * targets.elements()).status();
}

absl::Status check_cross_entropy_parts(In targets, In count, In loss_scale, const VocabSlice& slice, In parts,
                                       InOut logits, InOut loss) {
  Check check("cross_entropy_parts");
  check.vector("targets", targets, kI32, -1)
      .vector("count", count, kF32, 1)
      .optional_vector("loss_scale", loss_scale, kF32, 1)
      .matrix("logits", logits, kFloat, targets.elements(), -1);
  check_slice(check, slice, "logits", cols_of(logits), "columns");
  check_parts(check, parts, targets.elements());
  return check.vector("loss", loss, kF32, 1).status();
}

absl::Status check_cross_entropy_loss_parts(In targets, In count, In parts, InOut loss) {
  Check check("cross_entropy_loss_parts");
  check.vector("targets", targets, kI32, -1).vector("count", count, kF32, 1);
  check_parts(check, parts, targets.elements());
  return check.vector("loss", loss, kF32, 1).status();
}

absl::Status check_sum_squares(In x, InOut sum) {
  return Check("sum_squares").tensor("x", x, kFloat).vector("sum", sum, kF32, 1).status();
}

absl::Status check_clip_scale(In sum_squares, In loss_scale, float max_norm, Out norm, Out scale) {
  return Check("clip_scale")
      .vector("sum_squares", sum_squares, kF32, 1)
      .optional_vector("loss_scale", loss_scale, kF32, 1)
      .rule(max_norm >= 0, "max_norm", max_norm, "at least 0")
      .vector("norm", norm, kF32, 1)
      .vector("scale", scale, kF32, 1)
      .status();
}

absl::Status check_advance_step(const StepParams& params, In scale, InOut state, InOut step) {
  return Check("advance_step")
      .rule(params.growth_factor >= 1, "params.growth_factor", params.growth_factor, "at least 1")
      .rule(params.backoff_factor > 0 && params.backoff_factor <= 1, "params.backoff_factor", params.backoff_factor,
            "above 0, at most 1")
      .rule(params.growth_interval > 0, "params.growth_interval", params.growth_interval, "at least 1")
      .rule(params.min_loss_scale > 0, "params.min_loss_scale", params.min_loss_scale, "above 0")
      .rule(params.max_loss_scale >= params.min_loss_scale, "params.max_loss_scale", params.max_loss_scale,
            absl::StrCat("at least params.min_loss_scale = ", params.min_loss_scale))
      .vector("scale", scale, kF32, 1)
      .vector("state", state, kF32, kStepStates)
      .vector("step", step, kF32, kStepScalars)
      .status();
}

absl::Status check_adamw(In grad, In scale, In step, InOut master, InOut exp_avg, InOut exp_avg_sq, Out weight) {
  const int64_t n = grad.elements();
  return Check("adamw")
      .tensor("grad", grad, kF32)
      .vector("scale", scale, kF32, 1)
      .vector("step", step, kF32, kStepScalars)
      .vector("master", master, kF32, n)
      .vector("exp_avg", exp_avg, kF32, n)
      .vector("exp_avg_sq", exp_avg_sq, kF32, n)
      .optional_vector("weight", weight, kFloat, n)
      .status();
}

}  // namespace telar::backend
