#include "worker/backend/cpu/stream.h"

#include <omp.h>
#include <pthread.h>

#include <cstring>
#include <exception>

#include "absl/strings/str_cat.h"

namespace telar::backend::cpu {
namespace {

constexpr size_t kReservedItems = 1024;  // A longer queue grows once, when it first gets there.

}  // namespace

uint64_t ThreadEvent::submit_record() {
  const std::lock_guard lock(mutex_);
  return ++submitted_;
}

uint64_t ThreadEvent::latest() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

void ThreadEvent::complete(uint64_t generation) {
  std::unique_lock lock(mutex_);
  // Only an event that is recorded on several streams can have to wait here, and only for records submitted earlier.
  completed_changed_.wait(lock, [&] { return completed_ + 1 == generation; });
  completed_ = generation;
  completed_at_ = std::chrono::steady_clock::now();
  completed_changed_.notify_all();
}

void ThreadEvent::wait(uint64_t generation) {
  std::unique_lock lock(mutex_);
  completed_changed_.wait(lock, [&] { return completed_ >= generation; });
}

std::chrono::steady_clock::time_point ThreadEvent::completed_at() {
  std::unique_lock lock(mutex_);
  completed_changed_.wait(lock, [&, latest = submitted_] { return completed_ >= latest; });
  return completed_at_;
}

absl::Status ThreadEvent::synchronize() {
  wait(latest());
  return absl::OkStatus();
}

ThreadStream::ThreadStream(const std::string& name, int threads) {
  queue_.reserve(kReservedItems);
  thread_ = std::thread([this, name, threads] { loop(name, threads); });
}

ThreadStream::~ThreadStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  pushed_.notify_one();
  thread_.join();
}

void ThreadStream::submit(const std::function<absl::Status(Stream&)>& work) { push({.work = &work}); }

void ThreadStream::record(Event& event) {
  auto& thread_event = static_cast<ThreadEvent&>(event);
  push({.kind = Kind::kRecord, .event = &thread_event, .generation = thread_event.submit_record()});
}

void ThreadStream::wait(Event& event) {
  auto& thread_event = static_cast<ThreadEvent&>(event);
  push({.kind = Kind::kWait, .event = &thread_event, .generation = thread_event.latest()});
}

void ThreadStream::copy(void* to, const void* from, size_t bytes) {
  if (std::this_thread::get_id() == thread_.get_id()) {  // Part of work that runs now.
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  push({.kind = Kind::kCopy, .to = to, .from = from, .bytes = bytes});
}

absl::Status ThreadStream::synchronize() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
  return first_error_;
}

void ThreadStream::push(const Item& item) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(item);
  }
  pushed_.notify_one();
}

void ThreadStream::loop(const std::string& name, int threads) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());  // 15: the kernel's limit.
  omp_set_num_threads(threads);
  std::vector<Item> taken;  // Swapped with queue_, so that both keep their capacity.
  taken.reserve(kReservedItems);
  std::unique_lock lock(mutex_);
  while (true) {
    pushed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    taken.swap(queue_);
    busy_ = true;
    lock.unlock();
    for (const Item& item : taken) execute(item);
    taken.clear();
    lock.lock();
    busy_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

void ThreadStream::execute(const Item& item) {
  switch (item.kind) {
    case Kind::kRecord:
      return item.event->complete(item.generation);
    case Kind::kWait:
      return item.event->wait(item.generation);
    case Kind::kCopy:
      if (first_error_.ok() && item.bytes > 0) std::memcpy(item.to, item.from, item.bytes);
      return;
    case Kind::kWork:
      break;
  }
  if (!first_error_.ok()) return;
  try {
    first_error_ = (*item.work)(*this);
  } catch (const std::exception& exception) {  // A vendor's exception must not end the process.
    first_error_ = absl::InternalError(absl::StrCat("exception: ", exception.what()));
  }
}

}  // namespace telar::backend::cpu
