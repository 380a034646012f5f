// Collectives between ranks that are threads of one process: no sockets, so that hundreds of jobs fit into a test.
//
// As Gloo's: sums run in rank order for every element, a send returns when its receive has been posted and served, and
// members that make different calls get an error that says so. A failure ends all communicators of the gang.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/backend/collectives.h"
#include "worker/backend/cpu/cpu.h"
#include "worker/backend/cpu/gloo_reduce.h"

namespace telar::fakes {

// What the ranks of one job meet in: one object, and factory() for each rank's device. Communicators share what they
// need of it and may outlive it.
class ThreadCommunicators {
 public:
  backend::cpu::CommunicatorFactory factory() {
    return [gang = gang_](backend::KeyValueStore&, const backend::GangOptions& options,
                          std::span<const backend::Group> groups) { return create(gang, options, groups); };
  }

 private:
  struct Call {
    std::string what;  // Equal on all members: name, reduction, type, elements, root.
    const std::byte* x = nullptr;
    std::byte* y = nullptr;
    uint64_t bytes = 0;  // Of x.
  };
  // A member that waits for all of its messages. It is woken by itself: waking the whole room for each is what took
  // most of the time of tests with eight ranks.
  struct Errand {
    std::condition_variable done;
    int open = 0;  // Messages that nobody has served.
  };
  struct Parcel {  // A send or a receive that waits for its other side; on the stack of whoever waits.
    Call call;
    std::pair<int, int> way;  // From, to.
    Errand* errand = nullptr;
  };
  struct Room {
    std::mutex mutex;
    std::condition_variable changed;  // Members, rounds or failure.
    // All below: guarded by mutex.
    size_t members = 0;  // Made so far.
    std::vector<const Call*> calls;
    size_t arrived = 0;
    uint64_t rounds = 0;                                     // Collectives done.
    std::map<std::pair<int, int>, Parcel*> sends, receives;  // By way.
    std::vector<Errand*> errands;                            // Of who waits.
    absl::Status failure;
  };
  struct Gang {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<Room>> rooms;  // Guarded by mutex.

    std::shared_ptr<Room> room(const backend::Group& group) {
      const std::lock_guard lock(mutex);
      return rooms.try_emplace(group.name, std::make_shared<Room>()).first->second;
    }
    void fail(const absl::Status& cause) {
      const std::lock_guard lock(mutex);
      for (const auto& [name, room] : rooms) {
        const std::lock_guard inner(room->mutex);
        room->failure.Update(cause);
        room->changed.notify_all();
        for (Errand* errand : room->errands) errand->done.notify_one();
      }
    }
  };

  class Member final : public backend::Communicator {
   public:
    Member(std::shared_ptr<Gang> gang, std::shared_ptr<Room> room, const backend::Group& group, int rank,
           std::chrono::milliseconds timeout)
        : gang_(std::move(gang)),
          room_(std::move(room)),
          name_(group.name),
          rank_(rank),
          size_(static_cast<int>(group.ranks.size())),
          timeout_(timeout) {}

    int rank() const override { return rank_; }
    int size() const override { return size_; }

    absl::Status all_reduce(backend::Stream&, backend::ReduceOp op, backend::InOut x) override {
      return meet(call("all_reduce", x, x.data, static_cast<int>(op)), [&](std::span<const Call* const> calls) {
        std::vector<const std::byte*> parts;
        for (const Call* call : calls) parts.push_back(call->x);
        backend::cpu::reduce_parts(op, x.dtype, parts, calls[0]->y, x.elements());
        for (const Call* call : calls.subspan(1)) std::memcpy(call->y, calls[0]->y, x.bytes());
      });
    }
    absl::Status all_gather(backend::Stream&, backend::In x, backend::Out y) override {
      if (absl::Status status = backend::check_whole("y", y, x, size_); !status.ok()) return status;
      return meet(call("all_gather", x, y.data), [&](std::span<const Call* const> calls) {
        for (const Call* to : calls) {
          for (size_t r = 0; r < calls.size(); ++r) std::memmove(to->y + r * x.bytes(), calls[r]->x, x.bytes());
        }
      });
    }
    absl::Status reduce_scatter(backend::Stream&, backend::ReduceOp op, backend::In x, backend::Out y) override {
      if (absl::Status status = backend::check_whole("x", x, y, size_); !status.ok()) return status;
      return meet(call("reduce_scatter", x, y.data, static_cast<int>(op)), [&](std::span<const Call* const> calls) {
        for (size_t r = 0; r < calls.size(); ++r) {  // In place, a member's y is what only its own sum reads.
          std::vector<const std::byte*> parts;
          for (const Call* call : calls) parts.push_back(call->x + r * y.bytes());
          backend::cpu::reduce_parts(op, x.dtype, parts, calls[r]->y, y.elements());
        }
      });
    }
    absl::Status broadcast(backend::Stream&, int root, backend::InOut x) override {
      return meet(call("broadcast", x, x.data, root), [&](std::span<const Call* const> calls) {
        const std::byte* from = calls[static_cast<size_t>(root)]->x;
        for (const Call* to : calls) std::memmove(to->y, from, x.bytes());
      });
    }
    absl::Status barrier() override {
      return meet({.what = "barrier"}, [](std::span<const Call* const>) {});
    }
    absl::Status send(backend::Stream&, int peer, backend::In x) override {
      return hand_over(Parcel{call("message", x, nullptr), {rank_, peer}});
    }
    absl::Status recv(backend::Stream&, int peer, backend::Out y) override {
      return hand_over(Parcel{call("message", y, y.data), {peer, rank_}});
    }
    absl::Status exchange(backend::Stream&, int to, backend::In x, int from, backend::Out y) override {
      return hand_over(Parcel{call("message", x, nullptr), {rank_, to}},
                       Parcel{call("message", y, y.data), {from, rank_}});
    }

    absl::Status wait_for_all() {
      std::unique_lock lock(room_->mutex);
      ++room_->members;
      room_->changed.notify_all();
      return wait(lock, room_->changed, "create", [&] { return room_->members == static_cast<size_t>(size_); });
    }

   private:
    Call call(const char* kind, const backend::View& x, std::byte* y, int detail = 0) const {
      return {absl::StrCat(kind, " ", detail, " of ", x.elements(), " ", std::string(backend::name_of(x.dtype))),
              x.data, y, x.bytes()};
    }
    absl::Status wait(auto& lock, std::condition_variable& changed, const std::string& what, const auto& done) {
      const bool in_time = changed.wait_for(lock, timeout_, [&] { return done() || !room_->failure.ok(); });
      if (in_time && room_->failure.ok()) return absl::OkStatus();
      if (!in_time) return fail(lock, absl::DeadlineExceededError(absl::StrCat("'", what, "': nobody came")));
      return room_->failure;
    }
    absl::Status fail(std::unique_lock<std::mutex>& lock, const absl::Status& cause) {
      const absl::Status named(cause.code(), absl::StrCat("group '", name_, "', rank ", rank_, ": ", cause.message()));
      lock.unlock();
      gang_->fail(named);
      lock.lock();
      return named;
    }
    absl::Status differs(std::unique_lock<std::mutex>& lock, const Call& mine, const Call& other) {
      return fail(lock, absl::UnavailableError(absl::StrCat("makes '", mine.what, "', others '", other.what, "'")));
    }
    // The last to come does it for all.
    template <typename Body>
    absl::Status meet(const Call& mine, Body body) {
      std::unique_lock lock(room_->mutex);
      if (!room_->failure.ok()) return room_->failure;
      std::vector<const Call*>& calls = room_->calls;
      if (room_->arrived == 0) calls.assign(static_cast<size_t>(size_), nullptr);
      for (const Call* other : calls) {
        if (other != nullptr && other->what != mine.what) return differs(lock, mine, *other);
      }
      calls[static_cast<size_t>(rank_)] = &mine;
      if (++room_->arrived < calls.size()) {
        return wait(lock, room_->changed, mine.what, [&, round = room_->rounds] { return room_->rounds > round; });
      }
      body(std::span<const Call* const>(calls));
      room_->arrived = 0;
      ++room_->rounds;
      lock.unlock();
      room_->changed.notify_all();
      return absl::OkStatus();
    }
    template <typename... Parcels>
    absl::Status hand_over(Parcels... parcels) {
      Errand errand;
      std::unique_lock lock(room_->mutex);
      if (!room_->failure.ok()) return room_->failure;
      for (Parcel* parcel : {&parcels...}) {
        parcel->errand = &errand;
        if (absl::Status status = offer(lock, *parcel); !status.ok()) return status;
      }
      room_->errands.push_back(&errand);
      const absl::Status status = wait(lock, errand.done, "message", [&] { return errand.open == 0; });
      std::erase(room_->errands, &errand);
      return status;
    }
    // The second to come moves the bytes.
    absl::Status offer(std::unique_lock<std::mutex>& lock, Parcel& parcel) {
      const Call& mine = parcel.call;
      const bool receives = mine.y != nullptr;
      auto& others = receives ? room_->sends : room_->receives;
      const auto found = others.find(parcel.way);
      if (found == others.end()) {
        (receives ? room_->receives : room_->sends)[parcel.way] = &parcel;
        ++parcel.errand->open;
        return absl::OkStatus();
      }
      Parcel& other = *found->second;
      if (other.call.what != mine.what) return differs(lock, mine, other.call);
      std::memcpy(receives ? mine.y : other.call.y, receives ? other.call.x : mine.x, mine.bytes);
      others.erase(found);
      if (--other.errand->open == 0) other.errand->done.notify_one();
      return absl::OkStatus();
    }

    const std::shared_ptr<Gang> gang_;
    const std::shared_ptr<Room> room_;
    const std::string name_;
    const int rank_, size_;
    const std::chrono::milliseconds timeout_;
  };

  static absl::StatusOr<std::vector<std::unique_ptr<backend::Communicator>>> create(
      const std::shared_ptr<Gang>& gang, const backend::GangOptions& options, std::span<const backend::Group> groups) {
    if (absl::Status status = backend::check_groups(options, groups); !status.ok()) return status;
    std::vector<std::unique_ptr<backend::Communicator>> made;
    for (const backend::Group& group : groups) {
      const auto place = std::find(group.ranks.begin(), group.ranks.end(), options.rank) - group.ranks.begin();
      auto member =
          std::make_unique<Member>(gang, gang->room(group), group, static_cast<int>(place), options.call_timeout);
      if (absl::Status status = member->wait_for_all(); !status.ok()) return status;
      made.push_back(std::move(member));
    }
    return made;
  }

  const std::shared_ptr<Gang> gang_ = std::make_shared<Gang>();
};

}  // namespace telar::fakes
