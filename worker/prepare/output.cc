#include "worker/prepare/output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/published_file.h"

namespace telar::prepare {
namespace {

namespace fs = std::filesystem;

// So that the lengths of a shard's documents, which wait in memory for its index, stay small.
constexpr uint64_t kMostShardDocuments = uint64_t{1} << 24;

absl::Status occupied(const std::string& directory, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("--out ", directory, ": ", why));
}

// "tokenizer.json" for "/models/gpt2/vocab.json".
std::string tokenizer_name(const std::string& path) { return "tokenizer" + fs::path(path).extension().string(); }

}  // namespace

Output::Output(const Options& options, data::TokenizerRecord tokenizer, int lock)
    : options_(options), directory_(options.out), tokenizer_(std::move(tokenizer)), lock_(lock) {}

Output::~Output() {
  if (skipped_ != nullptr) std::fclose(skipped_);
  ::close(lock_);
}

absl::StatusOr<std::unique_ptr<Output>> Output::open(const Options& options, nlohmann::ordered_json request,
                                                     data::TokenizerRecord tokenizer) {
  std::error_code error;
  fs::create_directories(options.out, error);
  const int lock = ::open(options.out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock < 0) return absl::ErrnoToStatus(errno, absl::StrCat("--out ", options.out));
  std::unique_ptr<Output> output(new Output(options, std::move(tokenizer), lock));
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) return occupied(options.out, "another run is writing into it");
  auto status = output->take_up(std::move(request));
  if (status.ok()) status = output->copy_tokenizer();
  if (!status.ok()) return status;
  return output;
}

absl::Status Output::take_up(nlohmann::ordered_json request) {
  std::error_code error;
  if (fs::exists(directory_ + "/" + data::kDatasetFile, error)) {
    return absl::AlreadyExistsError(absl::StrCat("--out ", directory_, ": holds a finished dataset"));
  }
  auto before = load_state(directory_);
  if (!before.ok()) return before.status();
  bool others = false;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kUnpublishedPrefix)) {
      std::error_code ignored;
      fs::remove(entry.path(), ignored);
    } else {
      others = true;
    }
  }
  if (error) return absl::PermissionDeniedError(absl::StrCat("--out ", directory_, ": ", error.message()));
  if (!*before) {
    if (others) return occupied(directory_, "is not empty, and no run to go on with");
    state_.request = std::move(request);
    return save_state(directory_, state_);
  }
  const std::string other = difference(request, (*before)->request);
  if (!other.empty() && !(*before)->shards.empty()) {
    return occupied(directory_, absl::StrCat("was begun by another request: ", other,
                                             "; name another directory, or remove this one"));
  }
  state_ = *std::move(*before);
  if (!other.empty()) state_ = {.request = std::move(request)};
  return state_.shards.empty() ? save_state(directory_, state_) : absl::OkStatus();
}

absl::Status Output::copy_tokenizer() {
  const std::string source = tokenizer_.spec.path();
  if (source.empty() || options_.format != Format::kPrepared) return absl::OkStatus();
  std::ifstream file(source, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("tokenizer ", source, ": cannot be read"));
  tokenizer_.spec.set_path(tokenizer_name(source));
  return publish_file(directory_, tokenizer_.spec.path(), content.str());
}

absl::Status Output::add_document(std::span<const int32_t> ids, uint64_t text_bytes, Position after) {
  const bool full = shard_tokens_ + ids.size() > options_.shard_tokens || shard_documents_ == kMostShardDocuments;
  if (shard_ != nullptr && full) {
    if (auto status = close_shard(); !status.ok()) return status;
  }
  if (shard_ == nullptr) {
    const std::string name = absl::StrFormat("shard-%05d", state_.shards.size());
    const int id_bytes = data::id_bytes_of(tokenizer_.vocabulary);
    auto shard = options_.format == Format::kLlmc ? data::create_llmc_shard(directory_, name, id_bytes)
                                                  : data::create_megatron_shard(directory_, name, id_bytes);
    if (!shard.ok()) return shard.status();
    shard_ = *std::move(shard);
  }
  if (auto status = shard_->append(ids); !status.ok()) return status;
  shard_tokens_ += ids.size();
  ++shard_documents_;
  ++state_.documents;
  state_.tokens += ids.size();
  state_.text_bytes += text_bytes;
  state_.position = after;
  return absl::OkStatus();
}

void Output::add_empty(Position after) {
  ++state_.empty;
  state_.position = after;
}

absl::Status Output::open_skipped() {
  const std::string path = directory_ + "/" + kSkippedFile;
  skipped_ = std::fopen(path.c_str(), "ab");
  // What a killed run wrote behind its last shard comes again.
  if (skipped_ == nullptr || ::truncate(path.c_str(), static_cast<off_t>(state_.skipped_bytes)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("write ", path));
  }
  return absl::OkStatus();
}

absl::Status Output::add_skipped(const std::string& line, Position after) {
  if (skipped_ == nullptr) {
    if (auto status = open_skipped(); !status.ok()) return status;
  }
  const std::string text = line + "\n";
  if (std::fwrite(text.data(), 1, text.size(), skipped_) != text.size()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("write ", directory_, "/", kSkippedFile));
  }
  ++state_.skipped;
  state_.skipped_bytes += text.size();
  state_.position = after;
  return absl::OkStatus();
}

absl::Status Output::close_shard() {
  if (skipped_ != nullptr && (std::fflush(skipped_) != 0 || ::fsync(::fileno(skipped_)) != 0)) {
    return absl::ErrnoToStatus(errno, absl::StrCat("write ", directory_, "/", kSkippedFile));
  }
  if (shard_ == nullptr) return absl::OkStatus();
  auto files = shard_->publish();
  if (!files.ok()) return files.status();
  shard_.reset();
  shard_tokens_ = shard_documents_ = 0;
  state_.shards.push_back(*std::move(files));
  return save_state(directory_, state_);
}

absl::Status Output::finish() {
  if (auto status = close_shard(); !status.ok()) return status;
  if (options_.format == Format::kPrepared) {
    const data::PreparedDataset dataset{tokenizer_, state_.documents, state_.tokens, state_.text_bytes, state_.shards};
    auto status = publish_file(directory_, data::kDatasetFile, data::dataset_text(dataset));
    if (!status.ok()) return status;
  }
  const std::string path = directory_ + "/" + kStateFile;
  if (::unlink(path.c_str()) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("remove ", path));
  return sync_directory(directory_);
}

}  // namespace telar::prepare
