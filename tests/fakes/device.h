// The CPU backend's device behind a wrapper that counts, and that can capture graphs and fail by itself as a GPU does.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/inline_stream.h"
#include "worker/backend/device.h"

namespace telar::fakes {

// Work is handed to the inner device's streams, so it runs as asynchronously as there. While `issue` of capture() runs,
// streams record instead; ops are not called, and so cannot fail: `refuse` lets a test say that one could not be
// captured.
class FakeDevice final : public backend::Device {
 public:
  struct Counts {
    std::atomic<int> allocations{0};
    std::atomic<int> synchronizations{0};  // Of streams and events by the host.
    std::atomic<int> captures{0};
    std::atomic<int> launches{0};
    std::atomic<int> timed_events{0};
  };

  explicit FakeDevice(std::unique_ptr<backend::Device> inner, bool has_graphs = false)
      : inner_(std::move(inner)), has_graphs_(has_graphs) {}
  Counts counts;
  absl::Status refuse;                                           // What capture() returns, unless OK.
  std::function<void(const backend::Marks::Mark&)> behind_mark;  // By the stream that has left it, if set.
  bool has_marks = false;                                        // Set before executors are made.
  // By an op: as if its kernel had gone wrong. From then on no mark is left, and whoever waits gets the error.
  void break_down() { broken_.store(true); }
  bool has_threads = true;  // Else its streams are InlineStreams. Set before streams are made.
  // Done before each copy on a stream of that name, in its order; to make copies late. Set before the stream is made.
  std::map<std::string, std::function<absl::Status(backend::Stream&)>> before_copies;
  // Done by a stream that has just recorded a timed event, if set: what is measured from there has begun.
  std::function<absl::Status(backend::Stream&)> behind_timed_record;

  const backend::DeviceInfo& info() const override { return inner_->info(); }
  absl::StatusOr<std::unique_ptr<backend::Memory>> allocate(size_t bytes) override {
    ++counts.allocations;
    return inner_->allocate(bytes);
  }
  absl::StatusOr<std::unique_ptr<backend::Memory>> allocate_pinned(size_t bytes) override {
    ++counts.allocations;
    return inner_->allocate_pinned(bytes);
  }
  absl::StatusOr<backend::DeviceOverhead> overhead() override { return inner_->overhead(); }
  absl::StatusOr<std::unique_ptr<backend::Stream>> create_stream(const std::string& name, bool compute) override {
    if (!has_threads) return std::make_unique<FakeStream>(*this, std::make_unique<InlineStream>(), before_copies[name]);
    auto stream = inner_->create_stream(name, compute);
    if (!stream.ok()) return stream.status();
    return std::make_unique<FakeStream>(*this, *std::move(stream), before_copies[name]);
  }
  absl::StatusOr<std::unique_ptr<backend::Event>> create_event() override {
    auto event = inner_->create_event();
    if (!event.ok()) return event.status();
    return std::make_unique<FakeEvent>(*this, *std::move(event), false);
  }
  absl::StatusOr<std::unique_ptr<backend::Event>> create_timed_event() override {
    ++counts.timed_events;
    auto event = inner_->create_timed_event();
    if (!event.ok()) return event.status();
    return std::make_unique<FakeEvent>(*this, *std::move(event), true);
  }
  absl::StatusOr<double> seconds_between(backend::Event& start, backend::Event& stop) override {
    ++counts.synchronizations;
    return inner_->seconds_between(static_cast<FakeEvent&>(start).inner(), static_cast<FakeEvent&>(stop).inner());
  }
  absl::StatusOr<std::vector<backend::KernelLaunch>> describe(
      backend::Stream&, const std::function<absl::Status(backend::Stream&)>&) override {
    return std::vector<backend::KernelLaunch>();
  }
  absl::StatusOr<std::unique_ptr<backend::Graph>> capture(backend::Stream& origin,
                                                          const std::function<absl::Status()>& issue) override {
    if (!has_graphs_) return inner_->capture(origin, issue);
    ++counts.captures;
    auto graph = std::make_unique<FakeGraph>(*this);
    capturing_ = graph.get();
    const absl::Status issued = issue();
    capturing_ = nullptr;
    if (!issued.ok()) return issued;
    if (!refuse.ok()) return refuse;
    return graph;
  }
  absl::StatusOr<std::unique_ptr<backend::Marks>> create_marks(uint32_t slots) override {
    if (!has_marks) return inner_->create_marks(slots);
    return std::make_unique<FakeMarks>(*this, slots);
  }
  backend::Kernels& kernels() override { return inner_->kernels(); }
  absl::StatusOr<std::vector<std::unique_ptr<backend::Communicator>>> create_communicators(
      backend::KeyValueStore& store, const backend::GangOptions& options,
      std::span<const backend::Group> groups) override {
    return inner_->create_communicators(store, options, groups);
  }
  absl::Status copy_to_device(const void* host, std::byte* device, size_t bytes) override {
    ++counts.synchronizations;
    return inner_->copy_to_device(host, device, bytes);
  }
  absl::Status copy_to_host(const std::byte* device, void* host, size_t bytes) override {
    ++counts.synchronizations;
    return inner_->copy_to_host(device, host, bytes);
  }

 private:
  class FakeGraph final : public backend::Graph {
   public:
    explicit FakeGraph(FakeDevice& device) : device_(device) {}
    void add(std::function<void()> step) { steps_.push_back(std::move(step)); }
    void launch(backend::Stream&) override {
      ++device_.counts.launches;
      for (const std::function<void()>& step : steps_) step();
    }
    size_t nodes() const override { return steps_.size(); }

   private:
    FakeDevice& device_;
    std::vector<std::function<void()>> steps_;
  };

  class FakeEvent final : public backend::Event {
   public:
    FakeEvent(FakeDevice& device, std::unique_ptr<backend::Event> inner, bool timed)
        : is_timed(timed), device_(device), inner_(std::move(inner)) {}
    const bool is_timed;
    absl::Status synchronize() override {
      ++device_.counts.synchronizations;
      return device_.unless_broken(inner_->synchronize());
    }
    backend::Event& inner() { return *inner_; }

   private:
    FakeDevice& device_;
    std::unique_ptr<backend::Event> inner_;
  };

  class FakeStream final : public backend::Stream {
   public:
    FakeStream(FakeDevice& device, std::unique_ptr<backend::Stream> inner,
               std::function<absl::Status(backend::Stream&)> before_copy)
        : device_(device), before_copy_(std::move(before_copy)), inner_(std::move(inner)) {}
    void submit(const std::function<absl::Status(backend::Stream&)>& work) override {
      enqueue([this, &work] { inner_->submit(work); });
    }
    void record(backend::Event& event) override {
      enqueue([this, &fake = static_cast<FakeEvent&>(event)] {
        inner_->record(fake.inner());
        if (fake.is_timed && device_.behind_timed_record) inner_->submit(device_.behind_timed_record);
      });
    }
    void wait(backend::Event& event) override {
      enqueue([this, &event] { inner_->wait(static_cast<FakeEvent&>(event).inner()); });
    }
    void copy(void* to, const void* from, size_t bytes) override {
      enqueue([this, to, from, bytes] {
        if (before_copy_) inner_->submit(before_copy_);
        inner_->copy(to, from, bytes);
      });
    }
    absl::Status synchronize() override {
      ++device_.counts.synchronizations;
      return device_.unless_broken(inner_->synchronize());
    }

   private:
    template <typename Step>
    void enqueue(Step step) {
      if (device_.capturing_ != nullptr) {
        device_.capturing_->add(step);
      } else {
        step();
      }
    }
    FakeDevice& device_;
    const std::function<absl::Status(backend::Stream&)> before_copy_;
    std::unique_ptr<backend::Stream> inner_;  // Last: gone before what its work calls.
  };

  class FakeMarks final : public backend::Marks {
   public:
    FakeMarks(FakeDevice& device, uint32_t slots) : device_(device), words_(slots) {}
    void leave(backend::Stream& stream, std::span<const Mark> marks) override {
      const Work& work = writes_.emplace_back([this, kept = std::vector(marks.begin(), marks.end())](backend::Stream&) {
        for (const Mark& mark : kept) {
          if (!device_.broken_.load()) words_[mark.slot].store(mark.value);
        }
        for (const Mark& mark : kept) {
          if (device_.behind_mark) device_.behind_mark(mark);
        }
        return absl::OkStatus();
      });
      stream.submit(work);
    }
    uint32_t read(uint32_t slot) const override { return words_[slot].load(); }

   private:
    using Work = std::function<absl::Status(backend::Stream&)>;
    FakeDevice& device_;
    std::vector<std::atomic<uint32_t>> words_;
    std::deque<Work> writes_;  // Streams borrow them.
  };

  absl::Status unless_broken(const absl::Status& status) const {
    return broken_.load() ? absl::InternalError("CUDA error 700") : status;
  }

  std::unique_ptr<backend::Device> inner_;
  const bool has_graphs_;
  FakeGraph* capturing_ = nullptr;
  std::atomic<bool> broken_{false};
};

}  // namespace telar::fakes
