#include "worker/checkpoint/compare.h"

#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/commands/ckpt.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"

namespace telar::client {
namespace {

std::string name_of(checkpoint::Difference difference) {
  switch (difference) {
    case checkpoint::Difference::kNone:
      return "none";
    case checkpoint::Difference::kOnlyInA:
      return "only in A";
    case checkpoint::Difference::kOnlyInB:
      return "only in B";
    case checkpoint::Difference::kShape:
      return "shape";
    case checkpoint::Difference::kDType:
      return "dtype";
    case checkpoint::Difference::kValues:
      return "values";
  }
  return "?";
}

absl::StatusOr<CheckpointDifference> compare(const std::string& a, const std::string& b) {
  auto& files = checkpoint::FileSystem::posix();
  const auto in_a = checkpoint::CheckpointReader::open(files, a);
  if (!in_a.ok()) return in_a.status();
  const auto in_b = checkpoint::CheckpointReader::open(files, b);
  if (!in_b.ok()) return in_b.status();
  const auto comparison = checkpoint::compare_checkpoints(**in_a, **in_b);
  if (!comparison.ok()) return comparison.status();
  CheckpointDifference difference{.a = a, .b = b};
  for (const auto& one : comparison->tensors) {
    difference.tensors.push_back({one.name, checkpoint::name_of(one.kind), name_of(one.difference), one.note,
                                  one.elements, one.differing, one.max_absolute, one.max_relative});
  }
  for (const auto& one : comparison->position) difference.fields.push_back({one.path, one.a, one.b});
  for (const auto& one : comparison->spec) difference.fields.push_back({absl::StrCat("spec.", one.path), one.a, one.b});
  return difference;
}

}  // namespace

int ckpt_diff(Context& context, const std::string& a, const std::string& b) {
  const auto in_a = find_checkpoint(context, a, RunMeans::kNewest);
  if (!in_a.ok()) return report_file(context, in_a.status());
  const auto in_b = find_checkpoint(context, b, RunMeans::kNewest);
  if (!in_b.ok()) return report_file(context, in_b.status());
  const auto difference = compare(*in_a, *in_b);
  if (!difference.ok()) return report_file(context, difference.status());
  if (!print_json(context, difference_json(*difference))) {
    context.out() << "A: " << *in_a << "\nB: " << *in_b << "\n"
                  << difference_page(*difference, context.wide(), context.header());
  }
  return difference->differs() ? kDiffers : kOk;
}

}  // namespace telar::client
