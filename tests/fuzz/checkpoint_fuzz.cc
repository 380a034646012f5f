// Manifests and safetensors headers of checkpoints, whoever wrote them.
#include <cstdio>

#include "common/crc32c.h"
#include "tests/fuzz/input.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"

namespace {

using namespace telar::checkpoint;  // NOLINT: what is fuzzed.
using telar::fuzz::require;

constexpr uint64_t kMostRead = 1 << 20;

// Closes the text with the checksum that a damaged file would not have, so that the reader goes on to its contents.
void read_manifest(std::string text, Cover cover) {
  char seal[64];
  std::snprintf(seal, sizeof(seal), ",\n \"manifest_crc32c\": \"%08x\"\n}\n",
                telar::crc32c(std::string_view(text.data(), text.size())));
  text += seal;
  const auto manifest = parse_manifest(text, "fuzz", cover);
  if (!manifest.ok()) return;
  const auto written = to_text(*manifest, cover);
  require(written.ok(), "what was read can be written");
  const auto again = parse_manifest(*written, "again", cover);
  require(again.ok() && *again == *manifest, "a manifest survives being written");
  Manifest whole = *manifest;
  (void)merge(*manifest, whole);
}

void read_safetensors(std::string_view bytes) {
  const telar::fuzz::MemoryFile memory(bytes);
  const auto file = SafetensorsFile::open(FileSystem::posix(), memory.path());
  if (!file.ok()) return;
  for (const TensorInfo& tensor : (*file)->tensors()) {
    require(tensor.begin <= tensor.end && (*file)->data_offset() + tensor.end <= bytes.size(),
            "tensors are in the file");
    std::vector<std::byte> data(std::min(kMostRead, tensor.end - tensor.begin));
    require((*file)->read(tensor, 0, data).ok(), "a tensor's bytes can be read");
    data.resize(1);
    require(!(*file)->read(tensor, tensor.end - tensor.begin, data).ok(), "and no more");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  telar::fuzz::Input input(data, size);
  switch (input.byte() % 3) {
    case 0:
      read_manifest(std::string(input.rest()), Cover::kWhole);
      break;
    case 1:
      read_manifest(std::string(input.rest()), Cover::kFragment);
      break;
    default:
      read_safetensors(input.rest());
  }
  return 0;
}
