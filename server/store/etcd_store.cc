#include "server/store/etcd_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/store/group_writer.h"

namespace telar::server::store {
namespace {

namespace pb = etcdserverpb;
using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr uint64_t kSchema = 1;
// etcd's own limits, as it has them unless told otherwise, are 128 operations and 1.5 MiB.
constexpr int kMostOps = 100;
constexpr size_t kMostBytes = 1'400'000;
constexpr int kWriters = 2;              // While etcd is slow, a hundred operations at a time would be few.
constexpr size_t kMostPart = 1'300'000;  // Of a change in parts; one value must fit, too.
constexpr int64_t kEventsAtOnce = 500;
constexpr std::chrono::seconds kRead(5);
constexpr milliseconds kAnswerPause(50);
constexpr std::chrono::seconds kCompactEvery(60);

std::string event_key(const std::string& base, uint64_t sequence) {
  return absl::StrCat(base, absl::StrFormat("%020d", sequence));
}

std::string with_step(const EventRow& event) {
  std::string value(8, '\0');
  for (int i = 0; i < 8; ++i) value[static_cast<size_t>(i)] = static_cast<char>(event.step >> (56 - 8 * i));
  return value + event.blob;
}

bool read_event(const pb::KeyValue& row, EventRow* event) {
  const std::string& key = row.key();
  if (key.size() < 20 || row.value().size() < 8 || !absl::SimpleAtoi(key.substr(key.size() - 20), &event->sequence)) {
    return false;
  }
  event->step = 0;
  for (size_t i = 0; i < 8; ++i) event->step = event->step << 8 | static_cast<uint8_t>(row.value()[i]);
  event->blob = row.value().substr(8);
  return true;
}

// What changes, in any order: no key is there twice but to be erased.
class Writes {
 public:
  // What those write, too.
  void add(const Writes& others) {
    ops_.MergeFrom(others.ops_);
    bytes_ += others.bytes_;
  }
  void put(std::string key, std::string value) {
    bytes_ += key.size() + value.size() + 16;
    pb::PutRequest* request = ops_.Add()->mutable_request_put();
    request->set_key(std::move(key));
    request->set_value(std::move(value));
  }
  void erase(std::string key) {
    bytes_ += key.size() + 16;
    ops_.Add()->mutable_request_delete_range()->set_key(std::move(key));
  }
  void erase_all(const std::string& prefix) {
    erase(prefix);
    ops_.rbegin()->mutable_request_delete_range()->set_range_end(end_of_prefix(prefix));
  }
  bool fit_in_one() const { return ops_.size() <= kMostOps && bytes_ <= kMostBytes; }
  int count() const { return ops_.size(); }
  size_t bytes() const { return bytes_; }
  const google::protobuf::RepeatedPtrField<pb::RequestOp>& ops() const { return ops_; }
  // Each as large as one value may be.
  std::vector<std::string> parts() const {
    std::vector<std::string> parts;
    pb::TxnRequest part;
    size_t bytes = 0;
    const auto close = [&] {
      parts.push_back(part.SerializeAsString());
      part.Clear();
      bytes = 0;
    };
    for (const pb::RequestOp& op : ops_) {
      const size_t size = op.ByteSizeLong() + 16;
      if (part.success_size() == kMostOps || (bytes > 0 && bytes + size > kMostPart)) close();
      *part.add_success() = op;
      bytes += size;
    }
    if (part.success_size() > 0) close();
    return parts;
  }

 private:
  google::protobuf::RepeatedPtrField<pb::RequestOp> ops_;
  size_t bytes_ = 0;
};

pb::Compare absent(const std::string& key) {
  pb::Compare compare;
  compare.set_target(pb::Compare::VERSION);
  compare.set_key(key);
  compare.set_version(0);
  return compare;
}

// Commits of several threads become one transaction, as far as they fit; one that does not fit alone goes in parts.
class EtcdStore final : public Store {
 public:
  EtcdStore(EtcdClient* client, Leadership* leadership, EtcdOptions options)
      : client_(client), leadership_(leadership), options_(std::move(options)) {}
  ~EtcdStore() override {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    if (compactor_.joinable()) compactor_.join();
  }

  absl::Status open();
  absl::Status commit(const Batch& batch) override { return commit_rows(&batch, 1); }
  absl::Status commit_all(const std::vector<Batch>& batches) override {
    return commit_rows(batches.data(), batches.size());
  }
  absl::StatusOr<std::vector<JobRow>> jobs() override;
  absl::StatusOr<std::vector<EventRow>> events(const std::string& job, uint64_t after, int limit) override;
  absl::StatusOr<uint64_t> next_line(const std::string& job, uint64_t epoch, uint32_t rank) override;
  absl::StatusOr<std::vector<SettingRow>> settings(const std::string& prefix) override;
  absl::StatusOr<std::optional<std::string>> answer(const std::string& request) override;

 private:
  std::string key(const std::string& name) const { return options_.prefix + name; }
  std::string events_of(const std::string& job) const { return key(absl::StrCat("events/", job, "/")); }
  static std::string stream_of(const std::string& job, uint64_t epoch, uint32_t rank) {
    return absl::StrCat("streams/", job, "/", epoch, "/", rank);
  }
  std::string parts_of(const std::string& change) const { return key(absl::StrCat("parts/", change, "/")); }
  EtcdClient::Steady soon() const { return SteadyClock::now() + kRead; }
  uint64_t head_of(const std::string& job) const;
  absl::Status deposed() const {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", client_->name(), ": this coordinator leads no more; the leader has to be asked"));
  }

  absl::StatusOr<std::optional<std::string>> read(const std::string& name);
  using Ops = google::protobuf::RepeatedPtrField<pb::RequestOp>;
  struct Commit {
    Writes writes;
    std::vector<std::string> fresh;  // Keys of answers.
    absl::Status status;
  };
  using Group = GroupWriter<Commit>::Group;
  static bool fits(const Group& group, const Commit& another);
  void commit_group(const Group& group);
  // Done once, and only while this process leads; comes back with a definite word, or when it leads no more.
  // ALREADY_EXISTS: a key of `fresh` is there.
  absl::Status write(const Ops& ops, const std::vector<std::string>& fresh);
  absl::Status load_heads();
  absl::Status finish_changes();
  absl::Status commit_rows(const Batch* batches, size_t count);
  absl::Status check_events(const Batch& batch) const;
  absl::Status check_sizes(const Writes& writes) const;
  absl::Status add_job(const Batch& batch, Writes& writes);
  absl::Status add_thinned(const std::string& job, uint64_t stride, Writes& writes);
  absl::Status commit_in_parts(const Writes& writes, const Writes& answers, const std::vector<std::string>& fresh);
  absl::Status carry_out(const std::string& change, const std::vector<std::string>& parts);
  void compact_now_and_then();
  void reach(const char* point) {
    if (options_.failpoint) options_.failpoint(point);
  }

  EtcdClient* const client_;
  Leadership* const leadership_;
  const EtcdOptions options_;
  std::atomic<int64_t> revision_{0};  // Newest that we have seen.
  std::atomic<uint64_t> changes_{0};  // In parts, of this term.

  GroupWriter<Commit> groups_{kWriters, fits, [this](const Group& group) { commit_group(group); }};
  mutable std::mutex mutex_;  // Guards the next two.
  std::map<std::string, uint64_t> heads_;
  bool closing_ = false;
  std::condition_variable changed_;
  std::thread compactor_;
};

absl::Status EtcdStore::open() {
  auto schema = read("schema");
  if (!schema.ok()) return schema.status();
  uint64_t version = 0;
  if (schema->has_value() && !absl::SimpleAtoi(**schema, &version)) {
    return absl::DataLossError(absl::StrCat("store ", client_->name(), ": ", key("schema"), " is '", **schema, "'"));
  }
  if (version > kSchema) {
    return absl::FailedPreconditionError(absl::StrCat("store ", client_->name(), " has schema ", version,
                                                      "; this program knows at most ", kSchema,
                                                      ": run the newer program, or restore a snapshot from before it"));
  }
  if (version == 0) {
    Writes first;
    first.put(key("schema"), absl::StrCat(kSchema));
    if (absl::Status status = write(first.ops(), {}); !status.ok()) return status;
  }
  if (absl::Status status = finish_changes(); !status.ok()) return status;
  if (absl::Status status = load_heads(); !status.ok()) return status;
  compactor_ = std::thread([this] { compact_now_and_then(); });
  return absl::OkStatus();
}

absl::Status EtcdStore::load_heads() {
  auto heads = client_->all(key("heads/"), kRead);
  if (!heads.ok()) return heads.status();
  std::lock_guard<std::mutex> hold(mutex_);
  for (const pb::KeyValue& row : *heads) {
    uint64_t head = 0;
    if (!absl::SimpleAtoi(row.value(), &head)) {
      return absl::DataLossError(absl::StrCat("store ", client_->name(), ": ", row.key()));
    }
    heads_[row.key().substr(key("heads/").size())] = head;
  }
  return absl::OkStatus();
}

// A leader of before died within changes in parts: those that stand are carried out, of the others the parts go.
absl::Status EtcdStore::finish_changes() {
  auto standing = client_->all(key("changes/"), kRead);
  if (!standing.ok()) return standing.status();
  for (const pb::KeyValue& row : *standing) {
    const std::string change = row.key().substr(key("changes/").size());
    auto rows = client_->all(parts_of(change), kRead);
    if (!rows.ok()) return rows.status();
    std::vector<std::string> parts;
    for (pb::KeyValue& part : *rows) parts.push_back(std::move(*part.mutable_value()));
    if (absl::StrCat(parts.size()) != row.value()) {
      return absl::DataLossError(absl::StrCat("store ", client_->name(), ": ", row.key(), " says ", row.value(),
                                              " parts, there are ", parts.size()));
    }
    if (absl::Status status = carry_out(change, parts); !status.ok()) return status;
  }
  Writes rest;
  rest.erase_all(key("parts/"));
  return write(rest.ops(), {});
}

absl::StatusOr<std::optional<std::string>> EtcdStore::read(const std::string& name) {
  pb::RangeRequest request;
  request.set_key(key(name));
  auto response = client_->range(request, soon());
  if (!response.ok()) return response.status();
  if (response->kvs_size() == 0) return std::optional<std::string>();
  return std::optional<std::string>(response->kvs(0).value());
}

// A call without an answer may have been done, or may be done later: so nothing that was sent until now may count any
// more (renew_fence()), and then it is made again. All of it is the same when it is done twice. Should etcd never say
// yes or no, our lease ends, and the next leader reads what there is.
absl::Status EtcdStore::write(const Ops& ops, const std::vector<std::string>& fresh) {
  bool may_be_there = false;  // From a call of ours.
  while (leadership_->holds()) {
    const Fence fence = leadership_->fence();
    pb::TxnRequest request;
    for (const pb::Compare& compare : fence.compares) *request.add_compare() = compare;
    for (const std::string& one : fresh) {
      if (!may_be_there) *request.add_compare() = absent(one);
    }
    *request.mutable_success() = ops;
    request.add_failure()->mutable_request_range()->set_key(leadership_->key());
    const auto response = client_->try_txn(request, leadership_->end());
    if (absl::IsUnavailable(response.status())) {
      may_be_there = true;
      std::this_thread::sleep_for(kAnswerPause);
      if (absl::Status status = leadership_->renew_fence(fence.version); !status.ok()) return deposed();
      continue;
    }
    if (!response.ok()) return response.status();
    int64_t seen = revision_;
    while (seen < response->header().revision() &&
           !revision_.compare_exchange_weak(seen, response->header().revision())) {
    }
    if (response->succeeded()) {
      if (options_.on_transaction) options_.on_transaction();
      return absl::OkStatus();
    }
    switch (leadership_->judge(response->responses(0).response_range(), fence.version)) {
      case Leadership::Verdict::kOurs:
        return absl::AlreadyExistsError(
            absl::StrCat("store ", client_->name(), ": ", absl::StrJoin(fresh, " or "), " is there"));
      case Leadership::Verdict::kNewFence:
        continue;
      case Leadership::Verdict::kLost:
        return deposed();
    }
  }
  return deposed();
}

uint64_t EtcdStore::head_of(const std::string& job) const {
  std::lock_guard<std::mutex> hold(mutex_);
  const auto found = heads_.find(job);
  return found == heads_.end() ? 0 : found->second;
}

absl::Status EtcdStore::check_events(const Batch& batch) const {
  uint64_t last = head_of(batch.job->id);
  for (const EventRow& event : batch.events) {
    if (event.sequence <= last) {
      return absl::AlreadyExistsError(absl::StrCat("store ", client_->name(), ": event ", event.sequence, " of job ",
                                                   batch.job->id, " comes after ", last));
    }
    last = event.sequence;
  }
  return absl::OkStatus();
}

absl::Status EtcdStore::check_sizes(const Writes& writes) const {
  for (const pb::RequestOp& op : writes.ops()) {
    const size_t size = op.ByteSizeLong();
    if (size <= kMostPart) continue;
    return absl::ResourceExhaustedError(absl::StrCat("store ", client_->name(), ": ",
                                                     op.request_put().key().substr(options_.prefix.size()), " has ",
                                                     size, " bytes; etcd takes at most ", kMostPart));
  }
  return absl::OkStatus();
}

absl::Status EtcdStore::add_job(const Batch& batch, Writes& writes) {
  const std::string& id = batch.job->id;
  if (absl::Status status = check_events(batch); !status.ok()) return status;
  if (batch.step_stride) {
    if (absl::Status status = add_thinned(id, *batch.step_stride, writes); !status.ok()) return status;
  }
  writes.put(key(absl::StrCat("jobs/", id)), batch.job->blob);
  if (!batch.events.empty()) {
    writes.put(key(absl::StrCat("heads/", id)), absl::StrCat(batch.events.back().sequence));
  }
  for (uint64_t sequence : batch.erase_events) writes.erase(event_key(events_of(id), sequence));
  for (const EventRow& event : batch.events) {
    writes.put(event_key(events_of(id), event.sequence), with_step(event));
  }
  if (batch.stream) {
    writes.put(key(stream_of(id, batch.stream->epoch, batch.stream->rank)), absl::StrCat(batch.stream->next_line));
  }
  return absl::OkStatus();
}

absl::Status EtcdStore::add_thinned(const std::string& job, uint64_t stride, Writes& writes) {
  pb::RangeRequest request;
  request.set_key(events_of(job));
  request.set_range_end(event_key(events_of(job), head_of(job) + 1));
  request.set_limit(kEventsAtOnce);
  while (true) {
    auto page = client_->range(request, soon());
    if (!page.ok()) return page.status();
    for (const pb::KeyValue& row : page->kvs()) {
      EventRow event;
      if (read_event(row, &event) && event.step > 0 && event.step % stride != 0) writes.erase(row.key());
    }
    if (!page->more()) return absl::OkStatus();
    request.set_key(page->kvs(page->kvs_size() - 1).key() + '\0');
  }
}

absl::Status EtcdStore::commit_rows(const Batch* batches, size_t count) {
  const auto start = SteadyClock::now();
  Writes writes, answers;
  std::vector<std::string> fresh;
  for (size_t i = 0; i < count; ++i) {
    const Batch& batch = batches[i];
    if (batch.job) {
      if (absl::Status status = add_job(batch, writes); !status.ok()) return status;
    }
    for (const SettingRow& setting : batch.settings) {
      const std::string name = key(absl::StrCat("settings/", setting.key));
      if (setting.blob) {
        writes.put(name, *setting.blob);
      } else {
        writes.erase(name);
      }
    }
    if (!batch.answer) continue;
    fresh.push_back(key(absl::StrCat("answers/", batch.answer->request)));
    answers.put(fresh.back(), batch.answer->blob);
  }
  if (absl::Status status = check_sizes(writes); !status.ok()) return status;
  if (absl::Status status = check_sizes(answers); !status.ok()) return status;
  reach("begin");
  if (absl::Status status = commit_in_parts(writes, answers, fresh); !status.ok()) return status;
  {
    std::lock_guard<std::mutex> hold(mutex_);
    for (size_t i = 0; i < count; ++i) {
      if (batches[i].job && !batches[i].events.empty()) heads_[batches[i].job->id] = batches[i].events.back().sequence;
    }
  }
  if (options_.on_commit) options_.on_commit(std::chrono::duration<double>(SteadyClock::now() - start).count());
  return absl::OkStatus();
}

bool EtcdStore::fits(const Group& group, const Commit& another) {
  int ops = another.writes.count();
  size_t bytes = another.writes.bytes();
  for (const Commit* one : group) {
    ops += one->writes.count();
    bytes += one->writes.bytes();
  }
  return ops <= kMostOps && bytes <= kMostBytes;
}

void EtcdStore::commit_group(const Group& group) {
  Commit all = *group.front();
  for (size_t i = 1; i < group.size(); ++i) {
    all.writes.add(group[i]->writes);
    all.fresh.insert(all.fresh.end(), group[i]->fresh.begin(), group[i]->fresh.end());
  }
  const absl::Status status = write(all.writes.ops(), all.fresh);
  // Only who is at fault may fail; a lost lead is everybody's.
  const bool blame_each = !status.ok() && !absl::IsFailedPrecondition(status) && group.size() > 1;
  for (Commit* one : group) one->status = blame_each ? write(one->writes.ops(), one->fresh) : status;
}

// In one, where all of it fits. Otherwise the parts are written down first, then, in one with the answers, that they
// stand; then they are carried out.
absl::Status EtcdStore::commit_in_parts(const Writes& writes, const Writes& answers,
                                        const std::vector<std::string>& fresh) {
  Commit whole{writes, fresh, {}};
  whole.writes.add(answers);
  if (whole.writes.fit_in_one()) {
    groups_.run(whole);
    if (whole.status.ok()) reach("committed");
    return whole.status;
  }
  const std::string change = absl::StrCat(leadership_->term(), "-", ++changes_);
  const std::vector<std::string> parts = writes.parts();
  Writes standing = answers;
  standing.put(key(absl::StrCat("changes/", change)), absl::StrCat(parts.size()));
  if (!standing.fit_in_one()) {
    return absl::ResourceExhaustedError(absl::StrCat("store ", client_->name(), ": ", answers.ops().size(),
                                                     " answers; etcd takes at most ", kMostOps, " and ", kMostBytes,
                                                     " bytes at once"));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    Writes part;
    part.put(absl::StrCat(parts_of(change), absl::StrFormat("%06d", i)), parts[i]);
    if (absl::Status status = write(part.ops(), {}); !status.ok()) return status;
  }
  reach("staged");
  if (absl::Status status = write(standing.ops(), fresh); !status.ok()) {
    Writes unused;
    unused.erase_all(parts_of(change));
    write(unused.ops(), {}).IgnoreError();  // Else the next open_etcd() does.
    return status;
  }
  reach("committed");
  absl::Status status = carry_out(change, parts);
  // It stands, so nothing else may be written before it is carried out: the next leader begins with that.
  if (!status.ok()) leadership_->lose(absl::StrCat("a change cannot be carried out: ", status.message()));
  return status.ok() ? status : deposed();
}

absl::Status EtcdStore::carry_out(const std::string& change, const std::vector<std::string>& parts) {
  for (const std::string& text : parts) {
    pb::TxnRequest part;
    if (!part.ParseFromString(text)) {
      return absl::DataLossError(absl::StrCat("store ", client_->name(), ": a part of change ", change));
    }
    if (absl::Status status = write(part.success(), {}); !status.ok()) return status;
    reach("part");
  }
  Writes done;
  done.erase(key(absl::StrCat("changes/", change)));
  done.erase_all(parts_of(change));
  return write(done.ops(), {});
}

absl::StatusOr<std::vector<JobRow>> EtcdStore::jobs() {
  auto rows = client_->all(key("jobs/"), kRead);
  if (!rows.ok()) return rows.status();
  std::vector<JobRow> found;
  for (pb::KeyValue& row : *rows) {
    found.push_back({row.key().substr(key("jobs/").size()), std::move(*row.mutable_value())});
  }
  return found;
}

absl::StatusOr<std::vector<EventRow>> EtcdStore::events(const std::string& job, uint64_t after, int limit) {
  const uint64_t head = head_of(job);
  std::vector<EventRow> rows;
  if (after >= head || limit <= 0) return rows;
  pb::RangeRequest request;
  request.set_key(event_key(events_of(job), after + 1));
  request.set_range_end(event_key(events_of(job), head + 1));
  request.set_limit(limit);
  auto found = client_->range(request, soon());
  if (!found.ok()) return found.status();
  for (const pb::KeyValue& row : found->kvs()) {
    EventRow event;
    if (!read_event(row, &event)) return absl::DataLossError(absl::StrCat("store ", client_->name(), ": ", row.key()));
    rows.push_back(std::move(event));
  }
  return rows;
}

absl::StatusOr<uint64_t> EtcdStore::next_line(const std::string& job, uint64_t epoch, uint32_t rank) {
  const auto value = read(stream_of(job, epoch, rank));
  if (!value.ok()) return value.status();
  uint64_t line = 0;
  if (value->has_value() && !absl::SimpleAtoi(**value, &line)) {
    return absl::DataLossError(absl::StrCat("store ", client_->name(), ": an offset of job ", job));
  }
  return line;
}

absl::StatusOr<std::optional<std::string>> EtcdStore::answer(const std::string& request) {
  return read("answers/" + request);
}

absl::StatusOr<std::vector<SettingRow>> EtcdStore::settings(const std::string& prefix) {
  auto rows = client_->all(key("settings/" + prefix), kRead);
  if (!rows.ok()) return rows.status();
  std::vector<SettingRow> found;
  for (const pb::KeyValue& row : *rows) found.push_back({row.key().substr(key("settings/").size()), row.value()});
  return found;
}

// etcd keeps every value that a key ever had until it is told not to.
void EtcdStore::compact_now_and_then() {
  int64_t then = revision_;
  std::unique_lock<std::mutex> hold(mutex_);
  while (!changed_.wait_for(hold, kCompactEvery, [this] { return closing_; })) {
    hold.unlock();
    if (then > 0 && leadership_->holds()) client_->compact(then).IgnoreError();  // Someone else may have done more.
    then = revision_;
    hold.lock();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> open_etcd(EtcdClient* client, Leadership* leadership, EtcdOptions options) {
  auto store = std::make_unique<EtcdStore>(client, leadership, std::move(options));
  if (absl::Status status = store->open(); !status.ok()) return status;
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace telar::server::store
