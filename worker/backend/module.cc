#include "worker/backend/module.h"

#include <dlfcn.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace telar::backend {

absl::StatusOr<std::unique_ptr<Device>> open_device(const std::string& name, const DeviceOptions& options) {
  const std::string file = absl::StrCat("libtelar_", name, ".so");
  std::error_code error;
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::string problem;
  void* module = nullptr;
  for (const std::filesystem::path& folder : {here, here / "lib", here / ".." / "lib" / "telar"}) {
    const std::filesystem::path path = folder / file;
    if (!std::filesystem::exists(path, error)) continue;
    module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module != nullptr) break;
    problem = dlerror();
  }
  if (module == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "backend '", name, "': ", problem.empty() ? absl::StrCat("no ", file, " beside the program") : problem));
  }
  using Entry = const ModuleTable* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(module, kModuleSymbol));
  if (entry == nullptr) return absl::FailedPreconditionError(absl::StrCat(file, " is not a backend module"));
  const ModuleTable* table = entry();
  if (table->abi != kModuleAbi) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, " has module ABI ", table->abi, ", this program has ", kModuleAbi, "; rebuild both"));
  }
  return table->open(options);
}

}  // namespace telar::backend
