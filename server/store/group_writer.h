// Threads that come while one of them writes share the next write: whoever is first in line writes for all behind it
// that fit, the others sleep until theirs is done.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace telar::server::store {

template <typename Work>
class GroupWriter {
 public:
  using Group = std::vector<Work*>;
  // `fits`: whether the work can be written together with those; asked for all but the first. `write` is called by one
  // thread at a time, and says in each work how it went.
  GroupWriter(std::function<bool(const Group&, const Work&)> fits, std::function<void(const Group&)> write)
      : fits_(std::move(fits)), write_(std::move(write)) {}

  // Returns when it is written, or could not be.
  void run(Work& work) {
    Waiting mine{&work, {}, false, false};
    std::unique_lock<std::mutex> hold(mutex_);
    line_.push_back(&mine);
    if (writing_) mine.changed.wait(hold, [&mine] { return mine.leads || mine.done; });
    if (mine.done) return;
    writing_ = true;
    std::vector<Waiting*> together;
    Group group;
    while (!line_.empty() && (group.empty() || fits_(group, *line_.front()->work))) {
      together.push_back(line_.front());
      group.push_back(line_.front()->work);
      line_.pop_front();
    }
    hold.unlock();
    write_(group);
    hold.lock();
    for (Waiting* one : together) {  // Its owner goes on once the lock is free.
      one->done = true;
      one->changed.notify_one();
    }
    writing_ = !line_.empty();
    if (line_.empty()) return;
    line_.front()->leads = true;
    line_.front()->changed.notify_one();
  }

 private:
  struct Waiting {
    Work* work;
    std::condition_variable changed;
    bool leads;  // It is first in line, and nobody writes.
    bool done;
  };

  const std::function<bool(const Group&, const Work&)> fits_;
  const std::function<void(const Group&)> write_;
  std::mutex mutex_;  // Guards all below. Nothing is written under it.
  std::deque<Waiting*> line_;
  bool writing_ = false;
};

}  // namespace telar::server::store
