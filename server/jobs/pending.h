// A change on its way to the store while the manager's lock is free. The job manager's own.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/jobs/draft.h"
#include "server/store/store.h"

namespace telar::server::jobs {

// What is to be stored together, and to count together.
struct Change {
  std::vector<Draft> drafts;       // Each of another job.
  store::Batch rest;               // Of no job: settings and an answer.
  std::vector<std::string> nodes;  // Of which something changes, too.
  std::function<void()> effect;    // What counts beside the drafts; may be empty.
  std::string request;             // Whose answer it makes; may be empty.
};

inline Change change_of(Draft draft, const std::string& request = "") {
  Change change;
  change.drafts.push_back(std::move(draft));
  change.request = request;
  return change;
}

// Shared by the thread that stores it and by those that wait for it.
struct Pending {
  Change change;
  std::vector<store::Batch> batches;
  std::vector<std::string> keys;  // Of pending changes: job ids, and node_key() of nodes.
  bool applied = false;           // Guarded by the manager's lock.

  void set_stored(absl::Status result) {
    std::lock_guard<std::mutex> hold(mutex);
    stored = true;
    status = std::move(result);
    changed.notify_all();
  }
  absl::Status wait() {
    std::unique_lock<std::mutex> hold(mutex);
    changed.wait(hold, [this] { return stored; });
    return status;
  }

 private:
  std::mutex mutex;
  std::condition_variable changed;
  bool stored = false;  // Guarded by `mutex`, as is the next.
  absl::Status status;
};

using AllPending = std::vector<std::shared_ptr<Pending>>;

// Beside the ids of jobs, which have no slash; what is decided about a node is stored under it, too.
inline std::string node_key(const std::string& node) { return "node/" + node; }

}  // namespace telar::server::jobs
