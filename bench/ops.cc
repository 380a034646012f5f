#include "bench/ops.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace telar::bench {
namespace {

struct NamedKernel {
  const char* name;
  engine::KernelId id;
};

const std::vector<NamedKernel>& named_kernels() {
#define TELAR_KERNEL(method) {#method, engine::KernelId(&backend::Kernels::method)},
  static const std::vector<NamedKernel> kernels = {
#include "bench/kernel_names.inc"
  };
#undef TELAR_KERNEL
  return kernels;
}

bool digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

const std::vector<std::string>& kernel_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const NamedKernel& kernel : named_kernels()) all.emplace_back(kernel.name);
    return all;
  }();
  return names;
}

std::string kernel_of(const engine::Op& op) {
  for (const NamedKernel& kernel : named_kernels()) {
    if (kernel.id == op.kernel) return kernel.name;
  }
  return "collective";
}

std::string kind_of(const engine::Op& op) {
  const std::string& op_name = op.name;
  std::string kind;
  for (size_t i = 0; i < op_name.size(); ++i) {
    if (!digit(op_name[i])) {
      kind += op_name[i];
    } else if (i == 0 || !digit(op_name[i - 1])) {
      kind += '*';
    }
  }
  if (!op.switches.empty()) absl::StrAppend(&kind, ":", op.switches);
  return std::string(absl::StripPrefix(kind, "mb*/"));
}

std::string shapes_of(const engine::Op& op) {
  std::string read, written;
  for (const engine::Access& access : op.accesses) {
    absl::StrAppend(access.writes() ? &written : &read, access.shape.to_string(),
                    access.reads() && access.writes() ? "* " : " ");
  }
  if (!written.empty()) written.pop_back();
  return absl::StrCat(read, "> ", written);
}

double traffic_of(const engine::Op& op) {
  int64_t ids = 0;
  for (const engine::Access& access : op.accesses) {
    if (access.dtype == engine::DType::kI32 && !access.writes()) ids = access.shape.elements();
  }
  double bytes = 0;
  for (const engine::Access& access : op.accesses) {
    double one = static_cast<double>(access.end - access.begin);
    if (ids > 0 && access.shape.rank() == 2 && access.shape[0] > ids) {
      one *= static_cast<double>(ids) / static_cast<double>(access.shape[0]);
    }
    bytes += one * (access.reads() && access.writes() ? 2 : 1);
  }
  return bytes;
}

}  // namespace telar::bench
