// Training data of other people: shards of llm.c, Megatron's index, dataset.json of a prepared dataset.
#include "tests/fuzz/input.h"
#include "worker/data/prepared.h"
#include "worker/data/sharded_source.h"
#include "worker/data/token_source.h"

namespace {

using telar::fuzz::require;
constexpr int64_t kVocab = 50257;
constexpr uint64_t kMostTokens = 4096;
constexpr uint64_t kMostDocuments = 4096;

void use(const telar::data::TokenSource& source, int32_t end_of_document) {
  const uint64_t size = source.size();
  std::vector<int32_t> tokens(std::min(size, kMostTokens));
  for (const uint64_t first : {uint64_t{0}, size - tokens.size()}) {
    if (!source.read(first, tokens).ok()) continue;
    for (const int32_t id : tokens) require(id >= 0 && id < kVocab, "an id that came through is below the vocabulary");
  }
  std::vector<int32_t> one(1);
  require(!source.read(size, one).ok(), "nothing is behind the end");
  (void)source.check_vocab(kVocab);
  const auto documents = source.documents(end_of_document);
  if (!documents.ok() || (*documents)->count() == 0) return;
  const uint64_t count = (*documents)->count();
  uint64_t before = 0;
  for (uint64_t i = 0; i < std::min(count, kMostDocuments); ++i) {
    require((*documents)->end(i) >= before, "documents ascend");
    before = (*documents)->end(i);
  }
  require((*documents)->end(count - 1) == size, "the last document ends with the tokens");
}

void use(const absl::StatusOr<std::unique_ptr<telar::data::TokenSource>>& source, int32_t end_of_document) {
  if (source.ok()) use(**source, end_of_document);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const telar::fuzz::Folder folder;
  telar::fuzz::Input input(data, size);
  const uint8_t mode = input.byte();
  const size_t cut = input.half();
  switch (mode % 4) {
    case 0: {
      const telar::fuzz::MemoryFile file(input.rest());
      use(telar::data::open_llmc_bin({file.path()}, kVocab), 50256);
      break;
    }
    case 1:
      folder.write("m.idx", input.take(cut));
      folder.write("m.bin", input.rest());
      use(telar::data::open_megatron({folder.path("m.bin")}, kVocab), 0);
      break;
    case 2: {
      std::filesystem::create_directories(folder.path("set"));
      folder.write("set/dataset.json", input.take(cut));
      const std::string_view index = input.take(input.half());
      folder.write("set/shard-00000.idx", index);
      folder.write("set/shard-00000.bin", input.rest());
      const auto directories = telar::data::read_prepared({folder.path("set")});
      if (!directories.ok()) break;
      use(telar::data::open_prepared(*directories, kVocab), 0);
      (void)telar::data::prepared_tokenizer(*directories);
      break;
    }
    default: {
      const telar::fuzz::MemoryFile file(input.rest());
      use(telar::data::open_text({file.path()}, kVocab), 256);
    }
  }
  return 0;
}
