#include "worker/plan/resolve_fp8.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

namespace telar::plan {
namespace {

// Of all extents of a product: as tensor cores take them, and whole blocks.
constexpr uint64_t kMultiple = 16, kBlockMultiple = 128;
constexpr uint32_t kDefaultHistory = 1024, kMostHistory = 65536;
constexpr uint32_t kMostMargin = 8;  // E4M3 has 18 binades.

// The layer that an entry of keep_bf16 names; none: no such layer.
std::optional<uint32_t> layer_of(const std::string& entry, uint32_t layers) {
  if (layers == 0) return std::nullopt;
  if (entry == "first") return 0;
  if (entry == "last") return layers - 1;
  uint32_t layer = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), layer);
  if (error != std::errc() || end != entry.data() + entry.size() || layer >= layers) return std::nullopt;
  return layer;
}

class Fp8Resolver {
 public:
  Fp8Resolver(v1::JobSpec& spec, Problems& problems)
      : spec_(spec), precision_(*spec.mutable_precision()), problems_(problems) {}

  void run() {
    if (precision_.compute() == v1::AUTO) return;  // A problem that is told already.
    if (precision_.compute() != v1::FP8) return only_with_fp8();
    recipe();
    const bool blocks = precision_.recipe() == v1::PrecisionSpec::BLOCK;
    if (precision_.fp8_gradients() == v1::PrecisionSpec::GRADIENTS_UNSPECIFIED) {
      precision_.set_fp8_gradients(blocks ? v1::PrecisionSpec::E4M3 : v1::PrecisionSpec::E5M2);
    }
    if (!precision_.has_fp8_fast_accumulation()) precision_.set_fp8_fast_accumulation(!blocks);
    if (blocks && precision_.fp8_fast_accumulation()) {
      problems_.add("precision.fp8_fast_accumulation", "true: recipe block adds its blocks up in fp32; leave it out");
    }
    const uint32_t layers = spec_.model().layers();
    for (int i = 0; i < precision_.keep_bf16_size(); ++i) {
      if (layer_of(precision_.keep_bf16(i), layers)) continue;
      problems_.add(fmt::format("precision.keep_bf16[{}]", i), "'{}' is no layer; use first, last or a number below {}",
                    precision_.keep_bf16(i), layers);
    }
    const std::vector<bool> in_fp8 = fp8_layers(spec_);
    if (std::find(in_fp8.begin(), in_fp8.end(), true) != in_fp8.end()) extents();
  }

 private:
  void only_with_fp8() {
    const auto refuse = [&](bool is_set, const char* field) {
      if (is_set)
        problems_.add(std::string("precision.") + field, "goes with precision.compute fp8 only; leave it out");
    };
    refuse(precision_.recipe() != v1::PrecisionSpec::RECIPE_UNSPECIFIED, "recipe");
    refuse(precision_.fp8_gradients() != v1::PrecisionSpec::GRADIENTS_UNSPECIFIED, "fp8_gradients");
    refuse(precision_.has_fp8_fast_accumulation(), "fp8_fast_accumulation");
    refuse(precision_.keep_bf16_size() > 0, "keep_bf16");
    only_delayed("precision.compute fp8 and recipe delayed");
  }

  void recipe() {
    if (precision_.recipe() == v1::PrecisionSpec::RECIPE_UNSPECIFIED) precision_.set_recipe(v1::PrecisionSpec::CURRENT);
    if (precision_.recipe() == v1::PrecisionSpec::DELAYED) return delayed();
    only_delayed("recipe delayed");
    if (precision_.recipe() == v1::PrecisionSpec::CURRENT || precision_.recipe() == v1::PrecisionSpec::BLOCK) return;
    problems_.add("precision.recipe", "{}: use current, delayed or block", static_cast<int>(precision_.recipe()));
  }

  void only_delayed(const char* what) {
    const auto refuse = [&](bool is_set, const char* field) {
      if (is_set) problems_.add(std::string("precision.") + field, "goes with {} only; leave it out", what);
    };
    refuse(precision_.fp8_history() != 0, "fp8_history");
    refuse(precision_.fp8_amax() != v1::PrecisionSpec::AMAX_UNSPECIFIED, "fp8_amax");
    refuse(precision_.fp8_margin() != 0, "fp8_margin");
  }

  void delayed() {
    if (precision_.fp8_history() == 0) precision_.set_fp8_history(kDefaultHistory);
    if (precision_.fp8_amax() == v1::PrecisionSpec::AMAX_UNSPECIFIED) precision_.set_fp8_amax(v1::PrecisionSpec::MAX);
    const auto at_most = [&](const char* field, uint32_t value, uint32_t most) {
      if (value > most) problems_.add(std::string("precision.") + field, "{}: at most {}", value, most);
    };
    at_most("fp8_history", precision_.fp8_history(), kMostHistory);
    at_most("fp8_margin", precision_.fp8_margin(), kMostMargin);
  }

  // Of what each rank multiplies.
  void extents() {
    const v1::ModelSpec& model = spec_.model();
    const uint64_t tensor = std::max(1u, spec_.parallel().tensor()), dim = model.head_dim();
    const std::string over = tensor > 1 ? fmt::format(" / parallel.tensor {}", tensor) : "";
    const bool blocks = precision_.recipe() == v1::PrecisionSpec::BLOCK;
    const uint64_t unit = blocks ? kBlockMultiple : kMultiple;
    const char* const who = blocks ? "precision.recipe block" : "precision.compute fp8";
    const char* const other = blocks ? "recipe current" : "bf16";
    const auto multiple = [&](const char* field, const std::string& what, uint64_t value) {
      if (value == 0 || value % unit == 0) return;
      problems_.add(field, "{} = {} is not a multiple of {}, as {} needs; use {}, or {}", what, value, unit, who,
                    (value + unit - 1) / unit * unit, other);
    };
    multiple("model.hidden", "hidden", model.hidden());
    const uint64_t heads = model.heads() / tensor, kv = std::max<uint64_t>(1, model.kv_heads() / tensor);
    multiple("model.head_dim", fmt::format("head_dim * heads{}", over), heads * dim);
    multiple("model.head_dim", fmt::format("head_dim * (heads + 2 kv_heads){}", over), (heads + 2 * kv) * dim);
    if (model.ffn() % tensor != 0) {
      problems_.add("model.ffn", "{} is not a multiple of parallel.tensor = {}, as precision.compute fp8 needs; use {}",
                    model.ffn(), tensor, (model.ffn() / (tensor * unit) + 1) * tensor * unit);
    } else {
      multiple("model.ffn", fmt::format("ffn{}", over), model.ffn() / tensor);
    }
    multiple("batch.sequence_length", "micro * sequence_length",
             uint64_t{spec_.batch().micro()} * spec_.batch().sequence_length());
  }

  v1::JobSpec& spec_;
  v1::PrecisionSpec& precision_;
  Problems& problems_;
};

}  // namespace

void resolve_fp8(v1::JobSpec& spec, Problems& problems) { Fp8Resolver(spec, problems).run(); }

std::vector<bool> fp8_layers(const v1::JobSpec& spec) {
  if (spec.precision().compute() != v1::FP8) return {};
  const uint32_t layers = spec.model().layers();
  std::vector<bool> in_fp8(layers, true);
  for (const std::string& entry : spec.precision().keep_bf16()) {
    if (const auto layer = layer_of(entry, layers)) in_fp8[*layer] = false;
  }
  return in_fp8;
}

}  // namespace telar::plan
