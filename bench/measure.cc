#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <random>
#include <string>

namespace telar::bench {
namespace {

using backend::Out;
using backend::Stream;
using engine::Access;
using engine::BufferId;
using engine::DType;

constexpr uint64_t kAlignment = 256;
constexpr uint64_t kMostSets = 256;
constexpr double kMostCalls =
    200;  // A batch: a device's queue holds about a thousand launches, then it blocks the host.
constexpr int64_t kFewElements = 8;  // A scalar or a vector of them: a loss, a count, the rates of a step.
constexpr float kScalar = 0.1f, kVariance = 1e-4f, kDeviation = 0.5f;

uint64_t align_up(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The op with `sets` copies of its arguments, each a piece of work that a stream can be given.
class Subject {
 public:
  Subject(const engine::Program& program, const engine::Op& op, backend::Device& device, Stream& stream,
          const MeasureOptions& options)
      : program_(program), op_(op), device_(device), stream_(stream), options_(options) {}
  ~Subject() { (void)stream_.synchronize(); }  // Work refers to this.

  absl::Status prepare() {
    for (const Access& access : op_.accesses) {
      Range& range = ranges_.try_emplace(access.buffer, Range{access.begin, access.end}).first->second;
      range.begin = std::min(range.begin, access.begin);
      range.end = std::max(range.end, access.end);
    }
    uint64_t a_set = 0;
    for (const auto& [buffer, range] : ranges_) a_set += size_of(range);
    sets_ = std::clamp<uint64_t>((options_.cold_bytes + a_set - 1) / std::max<uint64_t>(1, a_set), 1, kMostSets);
    auto memory = device_.allocate(a_set * sets_);
    if (!memory.ok()) return memory.status();
    memory_ = *std::move(memory);
    std::byte* at = memory_->data();
    for (uint64_t set = 0; set < sets_; ++set) {
      addresses_.push_back(std::make_unique<engine::Addresses>(program_.buffers().size()));
      for (const auto& [buffer, range] : ranges_) {
        addresses_.back()->set(buffer, at + range.begin % kAlignment - range.begin);
        at += size_of(range);
      }
      contexts_.push_back({addresses_.back().get(), &device_, &no_groups_});
      for (const Access& access : op_.accesses) {
        if (absl::Status status = fill(access, *addresses_.back()); !status.ok()) return status;
      }
    }
    for (uint64_t set = 0; set < sets_; ++set) {
      work_.emplace_back([this, set](Stream& on) { return op_.run(contexts_[set], on); });
    }
    return warm();
  }

  // `calls` calls, each on the next set.
  void submit(uint64_t calls) {
    for (uint64_t i = 0; i < calls; ++i) stream_.submit(work_[next_++ % sets_]);
  }
  uint64_t sets() const { return sets_; }
  Stream& stream() { return stream_; }
  const std::function<absl::Status(Stream&)>& work() const { return work_.front(); }

 private:
  struct Range {
    uint64_t begin, end;
  };
  static uint64_t size_of(const Range& range) { return align_up(range.begin % kAlignment + range.end - range.begin); }

  absl::Status warm() {
    submit(sets_);
    return stream_.synchronize();
  }

  absl::Status fill(const Access& access, const engine::Addresses& addresses) {
    backend::View view;
    view.buffer = access.buffer;
    view.dtype = access.dtype;
    view.shape = access.shape;
    view.data = addresses.base(access.buffer) + access.begin;
    if (access.dtype == DType::kI32) {
      std::vector<int32_t> ids(static_cast<size_t>(view.elements()));
      const bool are_starts =
          program_.buffers()[access.buffer].name == "starts";  // Of documents: each sequence is one.
      std::uniform_int_distribution<int32_t> any(0, are_starts ? 0 : options_.ids_below - 1);
      for (int32_t& id : ids) id = any(random_);
      return device_.copy_to_device(ids.data(), view.data, view.bytes());
    }
    if (backend::is_fp8(access.dtype)) return fill_fp8(view);
    const bool variance = program_.buffers()[access.buffer].name.find("exp_avg_sq") != std::string::npos;
    const backend::RandomKey key{.seed = 1, .tensor = static_cast<uint32_t>(++filled_)};
    const std::function<absl::Status(Stream&)> make = [&](Stream& stream) {
      if (variance) return device_.kernels().fill(stream, kVariance, Out(view));
      if (view.elements() <= kFewElements) return device_.kernels().fill(stream, kScalar, Out(view));
      return device_.kernels().random_normal(stream, key, kDeviation, Out(view));
    };
    stream_.submit(make);
    return stream_.synchronize();
  }

  // Numbers of some magnitudes, of both signs; a block of them again and again.
  absl::Status fill_fp8(const backend::View& view) {
    std::vector<uint8_t> codes(std::min<size_t>(view.bytes(), size_t{1} << 20));
    std::normal_distribution<float> normal(0, 30);
    for (uint8_t& code : codes) {
      const float value = normal(random_);
      code = view.dtype == DType::kF8E4M3 ? backend::F8E4M3(value).bits : backend::F8E5M2(value).bits;
    }
    for (size_t at = 0; at < view.bytes(); at += codes.size()) {
      const size_t count = std::min<size_t>(codes.size(), view.bytes() - at);
      if (absl::Status status = device_.copy_to_device(codes.data(), view.data + at, count); !status.ok())
        return status;
    }
    return absl::OkStatus();
  }

  const engine::Program& program_;
  const engine::Op& op_;
  backend::Device& device_;
  Stream& stream_;
  const MeasureOptions& options_;
  std::map<BufferId, Range> ranges_;
  uint64_t sets_ = 1, next_ = 0, filled_ = 0;
  std::mt19937 random_{1};
  std::unique_ptr<backend::Memory> memory_;
  const std::vector<backend::Communicator*> no_groups_;
  std::vector<std::unique_ptr<engine::Addresses>> addresses_;
  std::vector<engine::RunContext> contexts_;
  std::vector<std::function<absl::Status(Stream&)>> work_;
};

class Timer {
 public:
  static absl::StatusOr<Timer> create(backend::Device& device) {
    auto start = device.create_timed_event();
    if (!start.ok()) return start.status();
    auto stop = device.create_timed_event();
    if (!stop.ok()) return stop.status();
    return Timer(device, *std::move(start), *std::move(stop));
  }

  struct Batch {
    double seconds, host_seconds;
  };
  absl::StatusOr<Batch> batch(Subject& subject, uint64_t calls) {
    subject.submit(1);  // So that the host is ahead of the device when the time starts.
    const auto begin = std::chrono::steady_clock::now();
    subject.stream().record(*start_);
    subject.submit(calls);
    subject.stream().record(*stop_);
    const std::chrono::duration<double> host = std::chrono::steady_clock::now() - begin;
    if (absl::Status status = subject.stream().synchronize(); !status.ok()) return status;
    auto seconds = device_.seconds_between(*start_, *stop_);
    if (!seconds.ok()) return seconds.status();
    return Batch{*seconds, host.count()};
  }

 private:
  Timer(backend::Device& device, std::unique_ptr<backend::Event> start, std::unique_ptr<backend::Event> stop)
      : device_(device), start_(std::move(start)), stop_(std::move(stop)) {}
  backend::Device& device_;
  std::unique_ptr<backend::Event> start_, stop_;
};

}  // namespace

absl::StatusOr<Measured> measure(const engine::Program& program, const engine::Op& op, backend::Device& device,
                                 Stream& stream, const MeasureOptions& options) {
  Subject subject(program, op, device, stream, options);
  if (absl::Status status = subject.prepare(); !status.ok()) return status;
  auto timer = Timer::create(device);
  if (!timer.ok()) return timer.status();
  const auto trial = timer->batch(subject, subject.sets());
  if (!trial.ok()) return trial.status();
  const double a_call = std::max(1e-7, trial->seconds / static_cast<double>(subject.sets()));
  const auto calls = static_cast<uint64_t>(std::clamp(options.batch_seconds / a_call, 1.0, kMostCalls));

  std::vector<Timer::Batch> batches;
  for (int i = 0; i < options.repeats; ++i) {
    auto batch = timer->batch(subject, calls);
    if (!batch.ok()) return batch.status();
    batches.push_back(*batch);
  }
  std::sort(batches.begin(), batches.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  const auto of_a_call = [calls](const Timer::Batch& batch) { return batch.seconds / static_cast<double>(calls); };
  const Timer::Batch& median = batches[batches.size() / 2];
  Measured measured{.seconds = of_a_call(median),
                    .fastest = of_a_call(batches.front()),
                    .slowest = of_a_call(batches.back()),
                    .host_bound = calls > 1 && median.host_seconds > 0.9 * median.seconds};
  auto launches = device.describe(subject.stream(), subject.work());
  if (launches.ok()) {
    measured.launches = *std::move(launches);
  } else {
    measured.launches_problem = std::string(launches.status().message());
  }
  return measured;
}

absl::Status call_once(const engine::Program& program, const engine::Op& op, backend::Device& device, Stream& stream,
                       const MeasureOptions& options) {
  Subject subject(program, op, device, stream, options);
  if (absl::Status status = subject.prepare(); !status.ok()) return status;
  subject.submit(1);
  return subject.stream().synchronize();
}

}  // namespace telar::bench
