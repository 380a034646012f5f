#include "server/store/etcd_store.h"

#include <spdlog/spdlog.h>

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
#include "absl/strings/str_split.h"

namespace telar::server::store {
namespace {

namespace pb = etcdserverpb;
using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr uint64_t kSchema = 1;
// etcd's own limits, as it has them unless told otherwise, are 128 operations and 1.5 MiB.
constexpr int kMostOps = 100;
constexpr size_t kMostBytes = 1'400'000;
constexpr std::chrono::seconds kRead(5);
constexpr milliseconds kPause(50);
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

// What a commit erases, as text: the stride, up to which sequence it counts, and single sequences.
struct Rest {
  uint64_t stride = 0;  // 0: none.
  uint64_t up_to = 0;
  std::vector<uint64_t> sequences;

  std::string text() const { return absl::StrCat(stride, " ", up_to, " ", absl::StrJoin(sequences, " ")); }
  static Rest parse(const std::string& text) {
    std::vector<uint64_t> numbers;
    for (const auto part : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      uint64_t number = 0;
      if (absl::SimpleAtoi(part, &number)) numbers.push_back(number);
    }
    Rest rest;
    if (numbers.size() < 2) return rest;
    rest.stride = numbers[0];
    rest.up_to = numbers[1];
    rest.sequences.assign(numbers.begin() + 2, numbers.end());
    return rest;
  }
};

// One transaction in the making.
class Writes {
 public:
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
  bool has_room(size_t bytes) const { return ops_.size() < kMostOps && bytes_ + bytes <= kMostBytes; }
  bool fits() const { return ops_.size() <= kMostOps && bytes_ <= kMostBytes; }
  bool empty() const { return ops_.empty(); }
  int count() const { return ops_.size(); }
  size_t bytes() const { return bytes_; }
  const google::protobuf::RepeatedPtrField<pb::RequestOp>& ops() const { return ops_; }

 private:
  google::protobuf::RepeatedPtrField<pb::RequestOp> ops_;
  size_t bytes_ = 0;
};

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
  absl::Status commit(const Batch& batch) override;
  absl::StatusOr<std::vector<JobRow>> jobs() override;
  absl::StatusOr<std::vector<EventRow>> events(const std::string& job, uint64_t after, int limit) override;
  absl::StatusOr<uint64_t> next_line(const std::string& job, uint64_t epoch, uint32_t rank) override;
  absl::StatusOr<std::optional<std::string>> answer(const std::string& request) override;
  absl::StatusOr<std::vector<SettingRow>> settings(const std::string& prefix) override;

 private:
  std::string key(const std::string& name) const { return options_.prefix + name; }
  std::string events_of(const std::string& job) const { return key(absl::StrCat("events/", job, "/")); }
  EtcdClient::Steady soon() const { return SteadyClock::now() + kRead; }
  uint64_t head_of(const std::string& job) const;
  absl::Status deposed() const {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", client_->name(), ": this coordinator leads no more; the leader has to be asked"));
  }

  absl::StatusOr<std::optional<std::string>> read(const std::string& name);
  // Done once, and only while this process leads; comes back with a definite word, or when it leads no more. `answer`:
  // a key that must be new.
  absl::Status write(const Writes& writes, const std::string& answer);
  absl::Status check(const Batch& batch, uint64_t head) const;
  Writes main_part(const Batch& batch) const;
  absl::Status commit_parts(const Batch& batch, uint64_t head);
  absl::Status stage(const Batch& batch);
  absl::Status erase(const std::string& job, const Rest& rest);
  absl::Status erase_by_stride(const std::string& job, const Rest& rest);
  void compact_now_and_then();
  void reach(const char* point) {
    if (options_.failpoint) options_.failpoint(point);
  }

  EtcdClient* const client_;
  Leadership* const leadership_;
  const EtcdOptions options_;
  std::atomic<int64_t> revision_{0};  // Newest that we have seen.

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
    if (absl::Status status = write(first, ""); !status.ok()) return status;
  }
  auto heads = client_->all(key("heads/"), soon());
  if (!heads.ok()) return heads.status();
  for (const pb::KeyValue& row : *heads) {
    uint64_t head = 0;
    if (!absl::SimpleAtoi(row.value(), &head)) return absl::DataLossError(absl::StrCat("store: ", row.key()));
    heads_[row.key().substr(key("heads/").size())] = head;
  }
  auto rests = client_->all(key("rest/"), soon());
  if (!rests.ok()) return rests.status();
  for (const pb::KeyValue& row : *rests) {
    const absl::Status status = erase(row.key().substr(key("rest/").size()), Rest::parse(row.value()));
    if (!status.ok()) return status;
  }
  compactor_ = std::thread([this] { compact_now_and_then(); });
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> EtcdStore::read(const std::string& name) {
  pb::RangeRequest request;
  request.set_key(key(name));
  auto response = client_->range(request, soon());
  if (!response.ok()) return response.status();
  if (response->kvs_size() == 0) return std::optional<std::string>();
  return std::optional<std::string>(response->kvs(0).value());
}

// A call without an answer may have been done, so it is made again until etcd says yes or no: all of it is the same
// when it is done twice. Should that never come, our lease ends, and the next leader reads what there is.
absl::Status EtcdStore::write(const Writes& writes, const std::string& answer) {
  pb::TxnRequest request;
  *request.add_compare() = leadership_->fence();
  *request.mutable_success() = writes.ops();
  request.add_failure()->mutable_request_range()->set_key(leadership_->key());
  if (!answer.empty()) {
    pb::Compare* fresh = request.add_compare();
    fresh->set_target(pb::Compare::VERSION);
    fresh->set_key(answer);
    fresh->set_version(0);
  }
  while (leadership_->holds()) {
    const auto response = client_->try_txn(request, leadership_->end());
    if (absl::IsUnavailable(response.status())) {
      while (request.compare_size() > 1) request.mutable_compare()->RemoveLast();  // It may be there by now: from us.
      std::this_thread::sleep_for(kPause);
      continue;
    }
    if (!response.ok()) return response.status();
    revision_ = std::max(revision_.load(), response->header().revision());
    if (response->succeeded()) {
      if (options_.on_transaction) options_.on_transaction();
      return absl::OkStatus();
    }
    const auto& holder = response->responses(0).response_range();
    const bool ours = holder.kvs_size() > 0 && holder.kvs(0).create_revision() == leadership_->term();
    if (ours) return absl::AlreadyExistsError(absl::StrCat("store ", client_->name(), ": ", answer, " is there"));
    leadership_->lose("another coordinator has taken over");
  }
  return deposed();
}

uint64_t EtcdStore::head_of(const std::string& job) const {
  std::lock_guard<std::mutex> hold(mutex_);
  const auto found = heads_.find(job);
  return found == heads_.end() ? 0 : found->second;
}

absl::Status EtcdStore::check(const Batch& batch, uint64_t head) const {
  uint64_t last = head;
  for (const EventRow& event : batch.events) {
    if (event.sequence <= last) {
      return absl::AlreadyExistsError(absl::StrCat("store ", client_->name(), ": event ", event.sequence, " of job ",
                                                   batch.job->id, " comes after ", last));
    }
    last = event.sequence;
    if (event.blob.size() + 256 <= kMostBytes) continue;
    return absl::ResourceExhaustedError(absl::StrCat("store ", client_->name(), ": event ", event.sequence, " of job ",
                                                     batch.job->id, " has ", event.blob.size(),
                                                     " bytes; one request to etcd takes ", kMostBytes));
  }
  const Writes main = main_part(batch);
  if (main.fits()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("store ", client_->name(), ": a change ",
                   batch.job ? absl::StrCat("of job ", batch.job->id) : "of settings", " has ", main.bytes(),
                   " bytes in ", main.count(), " values; one request to etcd takes ", kMostBytes, " in ", kMostOps));
}

// All but the events and what is erased of them.
Writes EtcdStore::main_part(const Batch& batch) const {
  Writes writes;
  if (batch.job) {
    writes.put(key(absl::StrCat("jobs/", batch.job->id)), batch.job->blob);
    if (!batch.events.empty()) {
      writes.put(key(absl::StrCat("heads/", batch.job->id)), absl::StrCat(batch.events.back().sequence));
    }
    if (batch.stream) {
      writes.put(key(absl::StrCat("streams/", batch.job->id, "/", batch.stream->epoch, "/", batch.stream->rank)),
                 absl::StrCat(batch.stream->next_line));
    }
  }
  if (batch.answer) writes.put(key(absl::StrCat("answers/", batch.answer->request)), batch.answer->blob);
  for (const SettingRow& setting : batch.settings) {
    if (setting.blob) {
      writes.put(key(absl::StrCat("settings/", setting.key)), *setting.blob);
    } else {
      writes.erase(key(absl::StrCat("settings/", setting.key)));
    }
  }
  return writes;
}

absl::Status EtcdStore::commit(const Batch& batch) {
  const auto start = SteadyClock::now();
  const uint64_t head = batch.job ? head_of(batch.job->id) : 0;
  if (absl::Status status = check(batch, head); !status.ok()) return status;
  reach("begin");
  if (absl::Status status = commit_parts(batch, head); !status.ok()) return status;
  if (options_.on_commit) options_.on_commit(std::chrono::duration<double>(SteadyClock::now() - start).count());
  return absl::OkStatus();
}

absl::Status EtcdStore::commit_parts(const Batch& batch, uint64_t head) {
  const std::string answer = batch.answer ? key(absl::StrCat("answers/", batch.answer->request)) : "";
  Writes one = main_part(batch);
  if (batch.job) {
    for (uint64_t sequence : batch.erase_events) one.erase(event_key(events_of(batch.job->id), sequence));
    for (const EventRow& event : batch.events)
      one.put(event_key(events_of(batch.job->id), event.sequence), with_step(event));
  }
  const bool in_one = one.fits() && !batch.step_stride;
  Rest rest;
  if (!in_one) {
    if (absl::Status status = stage(batch); !status.ok()) return status;
    one = main_part(batch);
    rest = {batch.step_stride.value_or(0), head, batch.erase_events};
    if (rest.stride != 0 || !rest.sequences.empty()) one.put(key(absl::StrCat("rest/", batch.job->id)), rest.text());
  }
  if (absl::Status status = write(one, answer); !status.ok()) return status;
  reach("committed");
  if (batch.job && !batch.events.empty()) {
    std::lock_guard<std::mutex> hold(mutex_);
    heads_[batch.job->id] = batch.events.back().sequence;
  }
  if (rest.stride == 0 && rest.sequences.empty()) return absl::OkStatus();
  // The commit stands whatever comes of this: the next open_etcd() finishes it.
  if (absl::Status status = erase(batch.job->id, rest); !status.ok()) {
    spdlog::warn("job {}: old events are erased later: {}", batch.job->id, std::string(status.message()));
  }
  return absl::OkStatus();
}

absl::Status EtcdStore::stage(const Batch& batch) {
  Writes writes;
  for (const EventRow& event : batch.events) {
    if (!writes.has_room(event.blob.size() + 256)) {
      if (absl::Status status = write(writes, ""); !status.ok()) return status;
      writes = Writes();
    }
    writes.put(event_key(events_of(batch.job->id), event.sequence), with_step(event));
  }
  if (!writes.empty()) {
    if (absl::Status status = write(writes, ""); !status.ok()) return status;
  }
  reach("staged");
  return absl::OkStatus();
}

absl::Status EtcdStore::erase_by_stride(const std::string& job, const Rest& rest) {
  pb::RangeRequest request;
  request.set_key(events_of(job));
  request.set_range_end(event_key(events_of(job), rest.up_to + 1));
  request.set_limit(kMostOps);
  while (true) {
    auto page = client_->range(request, soon());
    if (!page.ok()) return page.status();
    Writes writes;
    for (const pb::KeyValue& row : page->kvs()) {
      EventRow event;
      if (read_event(row, &event) && event.step > 0 && event.step % rest.stride != 0) writes.erase(row.key());
    }
    if (!writes.empty()) {
      if (absl::Status status = write(writes, ""); !status.ok()) return status;
    }
    if (!page->more()) return absl::OkStatus();
    request.set_key(page->kvs(page->kvs_size() - 1).key() + '\0');
  }
}

absl::Status EtcdStore::erase(const std::string& job, const Rest& rest) {
  if (rest.stride != 0) {
    if (absl::Status status = erase_by_stride(job, rest); !status.ok()) return status;
  }
  Writes writes;
  for (uint64_t sequence : rest.sequences) {
    if (!writes.has_room(256)) {
      if (absl::Status status = write(writes, ""); !status.ok()) return status;
      writes = Writes();
    }
    writes.erase(event_key(events_of(job), sequence));
  }
  if (!writes.has_room(256)) {
    if (absl::Status status = write(writes, ""); !status.ok()) return status;
    writes = Writes();
  }
  writes.erase(key(absl::StrCat("rest/", job)));
  if (absl::Status status = write(writes, ""); !status.ok()) return status;
  reach("erased");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<JobRow>> EtcdStore::jobs() {
  auto rows = client_->all(key("jobs/"), soon());
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
  auto value = read(absl::StrCat("streams/", job, "/", epoch, "/", rank));
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
  auto rows = client_->all(key("settings/" + prefix), soon());
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
