// The devices within one round of the scheduler: which are free, which are kept for whom, when others come back.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/jobs/round.h"

namespace telar::server::jobs {

class Room {
 public:
  explicit Room(const RoundInput& input);

  // Whether the request could ever be met on the nodes that are open now, if nothing ran there.
  bool possible(const Request& request);
  // Free devices that are kept for nobody. `seconds_left` of the job's time limit above 0: those, too, that are kept
  // for a job which starts after that time. Never more than `most` of them.
  std::optional<std::vector<uint32_t>> find(const Request& request, double seconds_left, uint32_t most);
  // A job starts on them.
  void take(const Holder& job);

  // When the request could start if running jobs end when they say, and nobody else comes in between. Now where it only
  // waits for jobs that are ending. Absent: nobody can tell.
  std::optional<Clock::Wall> start_of(const Request& request);
  // Keeps for it what it takes of the devices that are free now; `start` is what start_of() says.
  void reserve(const Waiter& waiter, const Request& request, Clock::Wall start);
  // Keeps what is free now where it lacks least to be complete, and so collects in round after round. False: there is
  // not enough that earlier reservations do not count on.
  bool collect(const Waiter& waiter, const Request& request);

  // The holders (by number) that have to go for the request; empty: none is needed, or it does not help. As few as
  // possible; of those the lowest, then the youngest. They count as ending from then on.
  std::vector<size_t> make_room(const Request& request, const std::function<bool(const Holder&)>& may_go);

  const std::vector<Holder>& holders() const { return holders_; }
  std::vector<Reservation>& reservations() { return reservations_; }
  std::vector<int>& owners() { return owner_; }

 private:
  using Filter = std::vector<bool>;  // By node.
  const Filter& filter(const Request& request);
  bool usable(const Request& request, const Filter& nodes, uint32_t device) const {
    const cluster::Inventory::Device& one = inventory_.devices[device];
    return one.kind == request.kind && owner_[device] != kClosed && nodes[one.node];
  }
  // On the devices for which `may` says so; in the largest shape that fits; nodes that the job avoids, and spare ones,
  // only where it does not go without.
  template <typename May>
  std::optional<std::vector<uint32_t>> place(const Request& request, uint32_t most, const May& may);
  template <typename May>
  std::vector<cluster::FreeNode> list(const Request& request, const Filter& nodes, const May& may) const;
  void sort_ends();
  void keep(const Waiter& waiter, std::optional<Clock::Wall> start, const std::vector<uint32_t>& devices);
  std::vector<size_t> choose(FitCounter counter, const Request& request, std::vector<size_t> candidates);

  const RoundInput& input_;
  const cluster::Inventory& inventory_;
  std::vector<Holder> holders_;  // With those that start in this round.
  std::vector<int> owner_;       // As RoundResult.owner.
  std::vector<bool> claimed_;    // A reservation counts on it to become free.
  std::vector<size_t> by_end_;   // Holders whose end is known, the first one first.
  bool ends_sorted_ = false;
  std::vector<uint32_t> free_;  // Kept for nobody, by kind.
  std::unordered_map<std::string, Filter> filters_;
  std::vector<Reservation> reservations_;
};

}  // namespace telar::server::jobs
