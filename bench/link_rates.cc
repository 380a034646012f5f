#include "bench/link_rates.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/device_timer.h"

namespace telar::bench {
namespace {

using backend::In;
using backend::InOut;
using backend::Out;
using backend::ReduceOp;
using backend::Stream;
using backend::View;

constexpr int kBatches = 5;
constexpr uint64_t kLeastBytes = uint64_t{1} << 16;
constexpr uint64_t kBatchBytes = uint64_t{1} << 29;

View floats(const backend::Memory& memory_of, std::byte* data, uint64_t bytes) {
  View view;
  view.buffer = 0;
  view.shape = backend::Shape{static_cast<int64_t>(std::min<uint64_t>(bytes, memory_of.bytes()) / sizeof(float))};
  view.data = data;
  return view;
}

// A kind of call on `whole` bytes: bytes on the wire over seconds is whole * factor / seconds.
struct LinkCall {
  double factor;
  google::protobuf::RepeatedPtrField<v1::LinkPoint>* points;
  std::function<absl::Status(Stream&, uint64_t whole)> call;
};

class LinkMeter {
 public:
  LinkMeter(backend::Device& device, backend::Communicator& pair) : device_(device), pair_(pair) {}

  absl::Status prepare(uint64_t most) {
    auto x = device_.allocate(most), y = device_.allocate(most);
    auto stream = device_.create_stream("links", false);
    for (const absl::Status& status : {x.status(), y.status(), stream.status()}) {
      if (!status.ok()) return status;
    }
    x_ = *std::move(x);
    y_ = *std::move(y);
    stream_ = *std::move(stream);
    return absl::OkStatus();
  }

  absl::StatusOr<v1::LinkRates> measure(uint64_t most) {
    v1::LinkRates rates;
    auto timer = DeviceTimer::create(device_);
    if (!timer.ok()) return timer.status();
    for (const LinkCall& kind : kinds(rates)) {
      for (const uint64_t bytes : link_sizes(most)) {
        const Work work = [&](Stream& stream) { return kind.call(stream, bytes); };
        const int calls = static_cast<int>(std::clamp<uint64_t>(kBatchBytes / bytes, 4, 100));
        if (absl::Status met = pair_.barrier(); !met.ok()) return met;
        const auto seconds = timer->seconds_of_one(*stream_, kBatches, calls, work);
        if (!seconds.ok()) return seconds.status();
        v1::LinkPoint& point = *kind.points->Add();
        point.set_bytes(bytes);
        point.set_bytes_per_second(kind.factor * static_cast<double>(bytes) / *seconds);
      }
    }
    rates.set_origin(v1::MEASURED);
    return rates;
  }

 private:
  View x(uint64_t bytes) const { return floats(*x_, x_->data(), bytes); }
  View y(uint64_t bytes) const { return floats(*y_, y_->data(), bytes); }

  // Of two members 2 (n-1)/n is 1 and (n-1)/n a half. Rank 0 receives: a sender may be done before its bytes are there.
  std::vector<LinkCall> kinds(v1::LinkRates& rates) {
    const int other = 1 - pair_.rank();
    return {
        {1, rates.mutable_all_reduce(),
         [this](Stream& s, uint64_t whole) { return pair_.all_reduce(s, ReduceOp::kSum, InOut(x(whole))); }},
        {0.5, rates.mutable_all_gather(),
         [this](Stream& s, uint64_t whole) { return pair_.all_gather(s, In(x(whole / 2)), Out(y(whole))); }},
        {0.5, rates.mutable_reduce_scatter(),
         [this](Stream& s, uint64_t whole) {
           return pair_.reduce_scatter(s, ReduceOp::kSum, In(x(whole)), Out(y(whole / 2)));
         }},
        {1, rates.mutable_send(),
         [this, other](Stream& s, uint64_t whole) {
           return other == 1 ? pair_.recv(s, other, Out(y(whole))) : pair_.send(s, other, In(x(whole)));
         }},
        {1, rates.mutable_exchange(),
         [this, other](Stream& s, uint64_t whole) {
           return pair_.exchange(s, other, In(x(whole)), other, Out(y(whole)));
         }},
    };
  }

  backend::Device& device_;
  backend::Communicator& pair_;
  std::unique_ptr<backend::Memory> x_, y_;
  std::unique_ptr<Stream> stream_;
};

// Of an all_reduce of `bytes`.
absl::StatusOr<double> all_reduce_seconds(backend::Device& device, backend::Communicator& group, uint64_t bytes) {
  auto timer = DeviceTimer::create(device);
  auto memory = device.allocate(bytes);
  auto stream = device.create_stream("links", false);
  for (const absl::Status& status : {timer.status(), memory.status(), stream.status(), group.barrier()}) {
    if (!status.ok()) return status;
  }
  const View x = floats(**memory, (*memory)->data(), bytes);
  return timer->seconds_of_one(**stream, kBatches, 20,
                               [&](Stream& s) { return group.all_reduce(s, ReduceOp::kSum, InOut(x)); });
}

}  // namespace

std::vector<uint64_t> link_sizes(uint64_t most) {
  std::vector<uint64_t> sizes;
  for (const int log : {16, 20, 24, 26, 28, 30}) {
    if (const uint64_t bytes = uint64_t{1} << log; bytes <= most) sizes.push_back(bytes);
  }
  return sizes;
}

absl::StatusOr<v1::LinkRates> measure_links(backend::Device& device, backend::Communicator& pair, uint64_t most) {
  LinkMeter meter(device, pair);
  if (absl::Status status = meter.prepare(most); !status.ok()) return status;
  return meter.measure(most);
}

absl::StatusOr<double> measure_latency(backend::Device& device, backend::Communicator& group,
                                       const v1::LinkRates& links) {
  const uint64_t bytes = link_sizes(kLeastBytes).front();
  const auto seconds = all_reduce_seconds(device, group, bytes);
  if (!seconds.ok() || links.all_reduce().empty()) return seconds.ok() ? 0 : seconds;
  const double n = group.size();
  const double wire = 2 * (n - 1) / n * static_cast<double>(bytes) / links.all_reduce(0).bytes_per_second();
  return std::max(0.0, *seconds - wire) / std::min(2 * (n - 2), 2 * std::log2(n));
}

absl::StatusOr<double> greatest_of(backend::Device& device, backend::Communicator& group, double value) {
  auto memory = device.allocate(sizeof(float));
  auto stream = device.create_stream("agree", false);
  if (!memory.ok()) return memory.status();
  if (!stream.ok()) return stream.status();
  auto number = static_cast<float>(value);
  absl::Status status = device.copy_to_device(&number, (*memory)->data(), sizeof(number));
  const View view = floats(**memory, (*memory)->data(), sizeof(number));
  const Work work = [&](Stream& s) { return group.all_reduce(s, ReduceOp::kMax, InOut(view)); };
  (*stream)->submit(work);
  status.Update((*stream)->synchronize());
  status.Update(device.copy_to_host((*memory)->data(), &number, sizeof(number)));
  if (!status.ok()) return status;
  return number;
}

}  // namespace telar::bench
