#include "worker/parallel/schedule_walk.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace telar::parallel {
namespace {

bool is_send(ActionKind kind) { return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward; }

struct Queue {
  int rank = 0;
  int peer = -1;             // -1: compute, or everything.
  std::vector<int> entries;  // Of the rank's list.
  size_t head = 0;
  double free = 0;  // When its last action ended.

  bool empty() const { return head == entries.size(); }
  int next() const { return empty() ? -1 : entries[head]; }
};

class Walker {
 public:
  Walker(const Schedule& schedule, const ScheduleIndex& index, const std::function<double(const Action&)>& seconds)
      : schedule_(schedule), index_(index), seconds_(seconds), queue_of_(schedule.ranks) {}

  ScheduleWalk run(QueueRule rule) {
    make_queues(rule);
    for (bool progress = true; progress;) {
      progress = false;
      for (Queue& queue : queues_) {
        while (advance(queue)) progress = true;
      }
    }
    for (const Queue& queue : queues_) {
      if (!queue.empty()) result_.stuck.push_back({queue.rank, queue.next()});
    }
    return std::move(result_);
  }

 private:
  void make_queues(QueueRule rule) {
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      const std::vector<Action>& actions = schedule_.actions[rank];
      result_.times.emplace_back(actions.size());
      for (size_t i = 0; i < actions.size(); ++i) {
        int peer = -1;
        if (rule == QueueRule::kOnePerPeer && is_transfer(actions[i].kind)) {
          const int other = index_.other_stage(actions[i]);
          if (other >= 0) peer = schedule_.rank_of_stage[other];
        }
        const size_t queue = queue_for(rank, peer);
        queues_[queue].entries.push_back(static_cast<int>(i));
        queue_of_[rank].push_back(queue);
      }
    }
  }

  size_t queue_for(int rank, int peer) {
    for (size_t i = queues_.size(); i > 0 && queues_[i - 1].rank == rank; --i) {
      if (queues_[i - 1].peer == peer) return i - 1;
    }
    queues_.push_back({rank, peer, {}, 0, 0});
    return queues_.size() - 1;
  }

  // Runs the next action of a queue if it can run. A RECV runs with its SEND.
  bool advance(Queue& queue) {
    const int entry = queue.next();
    if (entry < 0) return false;
    const Action& action = schedule_.actions[queue.rank][entry];
    if (is_transfer(action.kind) && (!is_send(action.kind) || index_.other_stage(action) < 0)) return false;
    double start = queue.free;
    for (const ScheduleIndex::Need& need : index_.needs(action)) {
      if (need.entry < 0 || !result_.times[queue.rank][need.entry].ran()) return false;
      start = std::max(start, result_.times[queue.rank][need.entry].end);
    }
    if (is_send(action.kind)) return transfer(queue, action, start);
    finish(queue, start, seconds_(action));
    return true;
  }

  bool transfer(Queue& queue, const Action& send, double start) {
    const ScheduleIndex::Need recv = index_.partner(send);
    const int to_rank = schedule_.rank_of_stage[recv.action.stage];
    if (recv.entry < 0) return false;
    Queue& peer = queues_[queue_of_[to_rank][recv.entry]];
    if (peer.next() != recv.entry) return false;
    start = std::max(start, peer.free);
    const double seconds = seconds_(send);
    finish(queue, start, seconds);
    finish(peer, start, seconds);
    const bool forward = send.kind == ActionKind::kSendForward;
    result_.transfers.push_back({queue.rank, to_rank, send.stage,
                                 forward ? Transfer::Direction::kForward : Transfer::Direction::kBackward,
                                 send.micro_batch});
    return true;
  }

  void finish(Queue& queue, double start, double seconds) {
    queue.free = start + seconds;
    result_.times[queue.rank][queue.next()] = {start, queue.free};
    ++queue.head;
  }

  const Schedule& schedule_;
  const ScheduleIndex& index_;
  const std::function<double(const Action&)>& seconds_;
  std::vector<Queue> queues_;                  // Those of a rank stand together.
  std::vector<std::vector<size_t>> queue_of_;  // By rank and entry.
  ScheduleWalk result_;
};

}  // namespace

ScheduleWalk walk(const Schedule& schedule, const ScheduleIndex& index, QueueRule rule,
                  const std::function<double(const Action&)>& seconds) {
  return Walker(schedule, index, seconds).run(rule);
}

std::string why_stuck(const Schedule& schedule, const ScheduleIndex& index, const ScheduleWalk& walk,
                      SchedulePosition position) {
  const Action& action = schedule.actions[position.rank][position.entry];
  for (const ScheduleIndex::Need& need : index.needs(action)) {
    if (need.entry < 0) return absl::StrCat("waits for ", to_text(need.action), ", which is not in its list");
    if (!walk.times[position.rank][need.entry].ran()) {
      return absl::StrCat("waits for ", to_text(schedule.actions[position.rank][need.entry]), " (entry ",
                          need.entry + 1, ")");
    }
  }
  const int other = index.other_stage(action);
  if (other < 0) return "goes beyond the end of the pipeline";
  const ScheduleIndex::Need partner = index.partner(action);
  const int rank = schedule.rank_of_stage[other];
  if (partner.entry < 0) {
    return absl::StrCat("waits for ", to_text(partner.action), ", which is not in the list of rank ", rank);
  }
  return absl::StrCat("waits for ", to_text(partner.action), " (rank ", rank, ", entry ", partner.entry + 1, ")");
}

std::string why_stuck(const Schedule& schedule, const ScheduleIndex& index, const ScheduleWalk& walk) {
  std::string text;
  for (const SchedulePosition& at : walk.stuck) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", "rank ", at.rank, ", ",
                    to_text(schedule.actions[at.rank][at.entry]), " (entry ", at.entry + 1, ") ",
                    why_stuck(schedule, index, walk, at));
  }
  return text;
}

}  // namespace telar::parallel
