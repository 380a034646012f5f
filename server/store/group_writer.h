// Threads that come while others write share the next write: whoever is first in line writes for all behind it that
// fit, the others sleep until theirs is done.
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
  // `fits`: whether the work can be written together with those. `write` says in each work how it went; it is called by
  // at most `writers` threads at a time.
  GroupWriter(int writers, std::function<bool(const Group&, const Work&)> fits, std::function<void(const Group&)> write)
      : writers_(writers), fits_(std::move(fits)), write_(std::move(write)) {}

  // Returns when it is written, or could not be.
  void run(Work& work) {
    Waiting mine{&work, {}, false, false};
    std::unique_lock<std::mutex> hold(mutex_);
    if (writing_ < writers_) {
      ++writing_;
    } else {
      line_.push_back(&mine);
      mine.changed.wait(hold, [&mine] { return mine.leads || mine.done; });
      if (mine.done) return;
    }
    std::vector<Waiting*> others;
    Group group = {&work};
    while (!line_.empty() && fits_(group, *line_.front()->work)) {
      others.push_back(line_.front());
      group.push_back(line_.front()->work);
      line_.pop_front();
    }
    hold.unlock();
    write_(group);
    hold.lock();
    for (Waiting* one : others) {  // Its owner goes on once the lock is free.
      one->done = true;
      one->changed.notify_one();
    }
    if (line_.empty()) {
      --writing_;
      return;
    }
    Waiting* next = line_.front();
    line_.pop_front();
    next->leads = true;
    next->changed.notify_one();
  }

 private:
  struct Waiting {
    Work* work;
    std::condition_variable changed;
    bool leads;  // It was first in line, and writes now.
    bool done;
  };

  const int writers_;
  const std::function<bool(const Group&, const Work&)> fits_;
  const std::function<void(const Group&)> write_;
  std::mutex mutex_;           // Guards all below. Nothing is written under it.
  std::deque<Waiting*> line_;  // Empty while fewer than writers_ write.
  int writing_ = 0;
};

}  // namespace telar::server::store
