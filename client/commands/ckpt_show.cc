#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/ckpt.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "worker/checkpoint/safetensors.h"

namespace telar::client {
namespace {

TensorLine line_of(const checkpoint::TensorEntry& tensor) {
  TensorLine line;
  line.name = tensor.name;
  line.kind = checkpoint::name_of(tensor.kind);
  line.dtype = checkpoint::dtype_name(tensor.dtype);
  line.shape = absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]");
  line.chunks = tensor.chunks.size();
  line.tied_to = tensor.tied_to;
  // The manifest's reader has checked the shape.
  if (tensor.tied_to.empty()) line.bytes = checkpoint::bytes_of(line.dtype, tensor.shape).value_or(0);
  return line;
}

void fill(const checkpoint::Manifest& manifest, CheckpointPage& page) {
  page.job = manifest.job;
  page.consumed_samples = manifest.consumed_samples;
  page.seed = manifest.seed;
  if (manifest.optimizer) {
    page.applied_steps = manifest.optimizer->applied_steps;
    page.skipped_steps = manifest.optimizer->skipped_steps;
    page.loss_scale = manifest.optimizer->loss_scale;
  }
  page.files = manifest.files.size();
  for (const auto& tensor : manifest.tensors) page.tensors.push_back(line_of(tensor));
  page.spec = nlohmann::ordered_json::parse(manifest.spec_json, nullptr, false);
  if (page.spec.is_discarded()) page.spec = nullptr;  // There is none.
}

}  // namespace

int ckpt_show(Context& context, const std::string& checkpoint) {
  const auto path = find_checkpoint(context, checkpoint, RunMeans::kNewest);
  if (!path.ok()) return report_file(context, path.status());
  const auto reader = checkpoint::CheckpointReader::open(checkpoint::FileSystem::posix(), *path);
  if (!reader.ok()) return report_file(context, reader.status());
  CheckpointPage page;
  page.line = look_at(*path);
  fill((*reader)->manifest(), page);
  if (print_json(context, checkpoint_json(page))) return kOk;
  if (context.options.output == Output::kName) {
    context.out() << *path << "\n";
  } else {
    context.out() << checkpoint_page(page, context.wide());
  }
  return kOk;
}

}  // namespace telar::client
