#include "tests/worker/checkpoint/memory_files.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace telar::checkpoint {
namespace {

std::string parent_of(const std::string& path) {
  return path.substr(0, path.find('/') == std::string::npos ? 0 : path.find_last_of('/'));
}
std::string leaf_of(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

absl::Status missing(const std::string& path) { return absl::NotFoundError(path + ": not there"); }

class MemoryReadable : public ReadableFile {
 public:
  MemoryReadable(std::string data, std::string path) : data_(std::move(data)), path_(std::move(path)) {}
  uint64_t size() const override { return data_.size(); }
  absl::Status read(uint64_t offset, std::span<std::byte> out) const override {
    if (offset > data_.size() || out.size() > data_.size() - offset) return absl::DataLossError(path_ + ": ends");
    std::memcpy(out.data(), data_.data() + offset, out.size());
    return absl::OkStatus();
  }

 private:
  const std::string data_, path_;
};

}  // namespace

class MemoryWritable : public WritableFile {
 public:
  MemoryWritable(MemoryFiles& files, MemoryFiles::NodePointer node, std::string path)
      : files_(files), node_(std::move(node)), path_(std::move(path)) {}
  absl::Status append(std::span<const std::byte> bytes) override {
    const std::lock_guard lock(files_.mutex_);
    const auto status = files_.strike("write " + path_, true);
    const uint64_t used = MemoryFiles::used_by(*files_.root_);
    const uint64_t room = files_.space_ - std::min(files_.space_, used);
    const uint64_t taken = std::min<uint64_t>(status.ok() ? bytes.size() : bytes.size() / 2, room);
    node_->data.append(reinterpret_cast<const char*>(bytes.data()), taken);
    files_.most_used_ = std::max(files_.most_used_, used + taken);
    if (!status.ok() || taken == bytes.size()) return status;
    return absl::ResourceExhaustedError("write " + path_ + ": No space left on device");
  }
  absl::Status sync() override {
    const std::lock_guard lock(files_.mutex_);
    const auto status = files_.strike("fsync " + path_, false);
    if (status.ok()) node_->synced_data = node_->data;
    return status;
  }
  absl::Status close() override {
    const std::lock_guard lock(files_.mutex_);
    return files_.strike("close " + path_, false);
  }

 private:
  MemoryFiles& files_;
  MemoryFiles::NodePointer node_;
  const std::string path_;
};

absl::Status MemoryFiles::strike(const std::string& what, bool needs_space) {
  const int64_t operation = operations_++;
  wake();  // Whoever waits has the lock again when the operation is done.
  if (fault_ == Fault::kPowerCut && operation >= at_) return absl::UnavailableError(what + ": power cut");
  if (fault_ == Fault::kIoError && operation == at_) return absl::DataLossError(what + ": Input/output error");
  if (fault_ == Fault::kDiskFull && operation >= at_ && needs_space) {
    return absl::ResourceExhaustedError(what + ": No space left on device");
  }
  return absl::OkStatus();
}

uint64_t MemoryFiles::used_by(const Node& node) {
  uint64_t bytes = node.data.size();
  for (const auto& [name, entry] : node.entries) bytes += used_by(*entry);
  return bytes;
}

MemoryFiles::NodePointer MemoryFiles::find(const std::string& path) {
  NodePointer node = root_;
  for (size_t begin = 0; begin < path.size() && node != nullptr;) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) {
      const auto entry = node->entries.find(path.substr(begin, end - begin));
      node = entry == node->entries.end() ? nullptr : entry->second;
    }
    begin = end + 1;
  }
  return node;
}

void MemoryFiles::restart(std::mt19937_64* random) {
  plan(Fault::kNone, 0);
  restart_node(*root_, random);
}

void MemoryFiles::restart_node(Node& node, std::mt19937_64* random) {
  if (random == nullptr || (*random)() % 2 == 0) node.entries = node.synced_entries;
  if (random == nullptr) {
    node.data = node.synced_data;
  } else if (node.data.size() > node.synced_data.size()) {
    node.data.resize(node.synced_data.size() + (*random)() % (node.data.size() - node.synced_data.size() + 1));
  }
  node.synced_entries = node.entries;
  node.synced_data = node.data;
  for (auto& [name, entry] : node.entries) restart_node(*entry, random);
}

std::string* MemoryFiles::bytes(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto node = find(path);
  return node == nullptr || node->directory ? nullptr : &node->data;
}

std::vector<std::string> MemoryFiles::all_files(const std::string& directory) {
  std::vector<std::string> found;
  const auto node = find(directory);
  if (node == nullptr) return found;
  for (const auto& [name, entry] : node->entries) {
    const std::string path = directory + "/" + name;
    if (!entry->directory) found.push_back(path);
    const auto below = all_files(path);
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

absl::StatusOr<std::unique_ptr<WritableFile>> MemoryFiles::create(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (auto status = strike("create " + path, true); !status.ok()) return status;
  const auto parent = find(parent_of(path));
  if (parent == nullptr) return missing(path);
  const auto node = std::make_shared<Node>();
  parent->entries[leaf_of(path)] = node;
  return std::make_unique<MemoryWritable>(*this, node, path);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> MemoryFiles::open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto node = find(path);
  if (node == nullptr || node->directory) return missing(path);
  return std::make_unique<MemoryReadable>(node->data, path);
}

absl::StatusOr<std::vector<std::string>> MemoryFiles::list(const std::string& directory) {
  const std::lock_guard lock(mutex_);
  const auto node = find(directory);
  if (node == nullptr || !node->directory) return missing(directory);
  std::vector<std::string> names;
  for (const auto& [name, entry] : node->entries) names.push_back(name);
  return names;
}

absl::Status MemoryFiles::make_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (find(path) != nullptr) return absl::AlreadyExistsError(path);
  if (auto status = strike("mkdir " + path, true); !status.ok()) return status;
  const auto parent = find(parent_of(path));
  if (parent == nullptr) return missing(path);
  parent->entries[leaf_of(path)] = std::make_shared<Node>(Node{.directory = true});
  return absl::OkStatus();
}

absl::Status MemoryFiles::sync_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (auto status = strike("fsync " + path, false); !status.ok()) return status;
  const auto node = find(path);
  if (node == nullptr) return missing(path);
  node->synced_entries = node->entries;
  return absl::OkStatus();
}

absl::Status MemoryFiles::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  if (auto status = strike("rename " + from, false); !status.ok()) return status;
  const auto source = find(parent_of(from)), target = find(parent_of(to));
  if (find(from) == nullptr || target == nullptr) return missing(from);
  const auto there = find(to);
  if (there != nullptr && there->directory && !there->entries.empty()) {
    return absl::FailedPreconditionError(to + ": Directory not empty");
  }
  target->entries[leaf_of(to)] = source->entries[leaf_of(from)];
  source->entries.erase(leaf_of(from));
  return absl::OkStatus();
}

absl::Status MemoryFiles::remove_file(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (auto status = strike("unlink " + path, false); !status.ok()) return status;
  const auto node = find(path);
  if (node == nullptr) return missing(path);
  if (node->directory) return absl::FailedPreconditionError(path + ": Is a directory");
  find(parent_of(path))->entries.erase(leaf_of(path));
  return absl::OkStatus();
}

absl::Status MemoryFiles::remove_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (auto status = strike("rmdir " + path, false); !status.ok()) return status;
  const auto node = find(path);
  if (node == nullptr) return missing(path);
  if (!node->entries.empty()) return absl::FailedPreconditionError(path + ": Directory not empty");
  find(parent_of(path))->entries.erase(leaf_of(path));
  return absl::OkStatus();
}

void MemoryFiles::play_time(int threads) {
  const std::lock_guard lock(mutex_);
  plays_time_ = true;
  threads_ = threads;
  waiting_ = 0;
}

void MemoryFiles::leave() {
  const std::lock_guard lock(mutex_);
  --threads_;
  wake();
}

void MemoryFiles::wake() {
  ++changes_;
  waiting_ = 0;
  changed_.notify_all();
}

void MemoryFiles::await_change(const std::string&, std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  const auto changed = [this, before = changes_] { return changes_ != before; };
  if (!plays_time_) {
    changed_.wait_for(lock, most, changed);
  } else if (++waiting_ < threads_) {
    changed_.wait(lock, changed);
  } else {
    played_ += most;
    wake();
  }
}

std::chrono::steady_clock::time_point MemoryFiles::now() {
  const std::lock_guard lock(mutex_);
  return plays_time_ ? played_ : std::chrono::steady_clock::now();
}

}  // namespace telar::checkpoint
