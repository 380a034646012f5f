// What a checkpoint holds: manifest.json. Format: docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/dtype.h"

namespace telar::checkpoint {

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";

// kFp8Amax: greatest magnitudes of a product's operands in FP8, [operands, steps], the last step's first.
enum class TensorKind : uint8_t { kWeight, kMaster, kExpAvg, kExpAvgSq, kFp8Amax };

std::string name_of(TensorKind kind);  // "weight", "master", "exp_avg", "exp_avg_sq", "fp8_amax"
std::optional<TensorKind> kind_from(std::string_view name);

// How the run was laid out when it saved. Only for people: any layout loads any other.
struct Layout {
  uint32_t tp = 1, pp = 1, dp = 1, zero = 0;
  bool operator==(const Layout&) const = default;
};

struct FileEntry {
  std::string name;
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
  bool operator==(const FileEntry&) const = default;
};

// A box of a logical tensor: the elements [offset, offset + shape) in each axis, row-major under `key` of `file`.
struct Chunk {
  std::string file;
  std::string key;
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
  uint32_t crc32c = 0;
  bool operator==(const Chunk&) const = default;
};

// A logical tensor: unfused, unpadded, global layer numbers. One of a name and kind.
struct TensorEntry {
  std::string name;
  TensorKind kind = TensorKind::kWeight;
  std::vector<int64_t> shape;
  backend::DType dtype = backend::DType::kF32;
  std::string tied_to;        // Name of the tensor of this kind that holds the elements; then no chunks.
  std::vector<Chunk> chunks;  // Together each element exactly once.
  bool operator==(const TensorEntry&) const = default;
};

// What the optimizer remembers besides its tensors.
struct OptimizerState {
  uint64_t applied_steps = 0;  // Adam's t: steps that were not skipped.
  uint64_t skipped_steps = 0;
  uint64_t good_steps = 0;  // Applied since the last skipped step or growth of the loss scale.
  double loss_scale = 0;    // 0: the run scales no loss.
  bool operator==(const OptimizerState&) const = default;
};

// Where the blend of sources that the run has now began, when it was changed on the way.
struct BlendStart {
  uint64_t samples = 0;                      // Of the run, before it.
  std::map<std::string, uint64_t> consumed;  // Of each source, by then; of those that it no longer has, too.
  bool operator==(const BlendStart&) const = default;
};

// What a source of the data held: another figure, and its samples come in another order.
struct SourceExtent {
  uint64_t rows = 0;  // Samples of an epoch.
  uint64_t sequence_length = 0;
  uint64_t train_tokens = 0;
  bool operator==(const SourceExtent&) const = default;
};

struct Manifest {
  uint32_t format_version = kFormatVersion;
  std::string job;
  uint64_t epoch = 0;  // Allocation epoch that published it.
  uint64_t step = 0;
  uint64_t consumed_samples = 0;
  // Samples of each source of the data, by name, those that the run no longer has among them.
  std::map<std::string, uint64_t> consumed_sources;
  std::optional<BlendStart> blend_start;  // Absent: at the run's first sample.
  // By name; "train" for data whose sources have none. Old manifests have none at all.
  std::map<std::string, SourceExtent> sources;
  uint64_t seed = 0;
  std::optional<OptimizerState> optimizer;  // Absent in old manifests: every step was applied.
  std::optional<double> eval_loss;          // Of an evaluation behind this very step; finite.
  std::string spec_json;                    // The complete JobSpec, a JSON object; empty: none.
  Layout layout;
  std::vector<FileEntry> files;
  std::vector<TensorEntry> tensors;

  const TensorEntry* find(std::string_view name, TensorKind kind) const;  // nullptr: not there.
  bool operator==(const Manifest&) const = default;
};

// A fragment is what one rank of several adds to a checkpoint: its chunks need not cover a tensor.
enum class Cover : uint8_t { kWhole, kFragment };

// INVALID_ARGUMENT when the manifest breaks a rule of its format: a file or tensor named twice, a chunk outside its
// tensor or in an unlisted file, elements held twice or not at all, a tie to nothing, a spec that is no JSON object.
absl::StatusOr<std::string> to_text(const Manifest& manifest, Cover cover = Cover::kWhole);

// The reverse; `path` is for messages. DATA_LOSS when the text is not, byte for byte, what was written, or breaks a
// rule; FAILED_PRECONDITION for a format_version above kFormatVersion. Unknown fields are ignored.
absl::StatusOr<Manifest> parse_manifest(std::string_view text, const std::string& path, Cover cover = Cover::kWhole);

// Adds the files and chunks of a fragment. INVALID_ARGUMENT names a tensor that `whole` lacks or has with another
// shape, dtype or tie.
absl::Status merge(const Manifest& fragment, Manifest& whole);

}  // namespace telar::checkpoint
