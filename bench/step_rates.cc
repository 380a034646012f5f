#include "bench/step_rates.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bench/device_timer.h"
#include "bench/link_rates.h"

namespace telar::bench {
namespace {

using backend::In;
using backend::Memory;
using backend::Out;
using backend::ReduceOp;
using backend::Stream;
using backend::View;

// A product in the type that the device is fastest in.
class Product {
 public:
  static absl::StatusOr<std::unique_ptr<Product>> create(backend::Device& device, const StepRateOptions& options) {
    std::unique_ptr<Product> product(new Product(device, options));
    for (auto& [memory, view] : {std::pair{&product->x_memory_, &product->x_},
                                 {&product->w_memory_, &product->w_},
                                 {&product->y_memory_, &product->y_}}) {
      auto made = device.allocate(view->bytes());
      if (!made.ok()) return made.status();
      *memory = *std::move(made);
      view->data = (*memory)->data();
    }
    return product;
  }

  // Zeros would draw less power.
  absl::Status fill(Stream& stream) {
    uint32_t number = 0;
    for (const View& view : {x_, w_}) {
      const Work work = [&](Stream& s) {
        return device_.kernels().random_normal(s, {.seed = 1, .tensor = ++number}, 1.0f, Out(view));
      };
      stream.submit(work);
      if (absl::Status status = stream.synchronize(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  Work rows(int64_t count) const {
    const auto first = [count](View view) {
      view.shape = backend::Shape{count, view.cols()};
      return view;
    };
    return [this, x = first(x_), y = first(y_)](Stream& stream) {
      return device_.kernels().linear(stream, In(x), In(w_), In(), Out(y));
    };
  }
  double flops(int64_t rows) const { return 2.0 * static_cast<double>(rows) * static_cast<double>(w_.elements()); }

 private:
  Product(backend::Device& device, const StepRateOptions& options) : device_(device) {
    const bool halves = device.info().peak_flops_bf16 > 0;
    for (View* view : {&x_, &w_, &y_}) {
      view->buffer = 0;
      view->dtype = halves ? backend::DType::kBF16 : backend::DType::kF32;
      view->shape = backend::Shape{view == &w_ ? options.width : options.rows, options.width};
    }
  }

  backend::Device& device_;
  View x_, w_, y_;
  std::unique_ptr<Memory> x_memory_, w_memory_, y_memory_;
};

// A device with products to do.
class Bench {
 public:
  Bench(backend::Device& device, const StepRateOptions& options) : device_(device), options_(options) {}

  absl::Status prepare() {
    auto product = Product::create(device_, options_);
    auto stream = device_.create_stream("products", true);
    auto timer = DeviceTimer::create(device_);
    for (const absl::Status& status : {product.status(), stream.status(), timer.status()}) {
      if (!status.ok()) return status;
    }
    product_ = *std::move(product);
    stream_ = *std::move(stream);
    timer_.emplace(*std::move(timer));
    whole_ = product_->rows(options_.rows);
    if (absl::Status status = product_->fill(*stream_); !status.ok()) return status;
    const auto cold = timer_->seconds_of_one(*stream_, 1, 2, whole_);
    if (cold.ok()) cold_seconds_ = *cold;
    return cold.status();
  }

  // Leaves the clock where products bring it.
  absl::Status heat() { return timer_->seconds(*stream_, calls_in(options_.heat_seconds), whole_).status(); }
  int calls_in(double seconds) const { return std::max(2, static_cast<int>(seconds / cold_seconds_)); }

  Stream& stream() { return *stream_; }
  DeviceTimer& timer() { return *timer_; }
  const Product& product() const { return *product_; }
  const Work& whole() const { return whole_; }  // Of all rows.

 private:
  backend::Device& device_;
  const StepRateOptions& options_;
  std::unique_ptr<Product> product_;
  std::unique_ptr<Stream> stream_;
  std::optional<DeviceTimer> timer_;
  Work whole_;
  double cold_seconds_ = 0;
};

class BesideMeter {
 public:
  BesideMeter(backend::Device& device, backend::Communicator& pair, const StepRateOptions& options)
      : device_(device), pair_(pair), options_(options), bench_(device, options) {}

  absl::Status prepare() {
    if (absl::Status status = bench_.prepare(); !status.ok()) return status;
    const auto calls = greatest_of(device_, pair_, bench_.calls_in(options_.batch_seconds));
    auto x = device_.allocate(options_.transfer_bytes), y = device_.allocate(options_.transfer_bytes);
    auto stream = device_.create_stream("transfers", false);
    for (const absl::Status& status : {calls.status(), x.status(), y.status(), stream.status()}) {
      if (!status.ok()) return status;
    }
    calls_ = static_cast<int>(*calls);
    const auto rounds = greatest_of(device_, pair_, bench_.calls_in(options_.heat_seconds) / kProducts);
    if (!rounds.ok()) return rounds.status();
    rounds_ = std::max(kLeastRounds, static_cast<size_t>(*rounds));
    x_ = *std::move(x);
    y_ = *std::move(y);
    transfers_ = *std::move(stream);
    return absl::OkStatus();
  }

  absl::StatusOr<BesideRates> measure() {
    BesideRates rates;
    for (const auto& [part, value] : {std::pair{&BesideMeter::step_share, &rates.step_share},
                                      {&BesideMeter::slowdown, &rates.slowdown},
                                      {&BesideMeter::send_slowdown, &rates.send_slowdown},
                                      {&BesideMeter::waiting_power, &rates.waiting_power}}) {
      absl::Status ready = pair_.barrier();
      if (ready.ok()) ready = bench_.heat();
      if (!ready.ok()) return ready;
      const auto alone = bench_.timer().seconds(bench_.stream(), calls_, bench_.whole());
      if (!alone.ok()) return alone.status();
      alone_ = *alone;
      const auto measured = (this->*part)();
      if (!measured.ok()) return measured.status();
      *value = *measured;
    }
    return rates;
  }

 private:
  static constexpr size_t kLeastRounds = 8;
  static constexpr int kProducts = 4;    // Between transfers.
  static constexpr double kMost = 0.99;  // Of their rate, that products lose to what goes on beside them.

  // Gathers between products, beside gathers alone.
  absl::StatusOr<double> step_share() {
    const Work gather = [this](Stream& s) {
      return pair_.all_gather(s, In(floats(*x_, options_.transfer_bytes / 2)),
                              Out(floats(*y_, options_.transfer_bytes)));
    };
    const auto between = rounds(kProducts, gather, [](double, double call, double) { return call; });
    if (!between.ok()) return between.status();
    const auto cold = bench_.timer().seconds_of_one(*transfers_, 25, 20, gather);
    if (!cold.ok()) return cold.status();
    return std::min(1.0, *cold / *between);
  }

  // Both are given to the device in turns, as a step's are: neither queue is full before the other one begins.
  absl::StatusOr<double> slowdown() {
    const Work reduce = [this](Stream& s) {
      return pair_.all_reduce(s, ReduceOp::kSum, backend::InOut(floats(*x_, options_.transfer_bytes)));
    };
    const auto one = bench_.timer().seconds_of_one(*transfers_, 3, 5, reduce);
    if (!one.ok()) return one.status();
    const auto transfers = greatest_of(device_, pair_, std::ceil(alone_ / *one));
    if (!transfers.ok()) return transfers.status();
    auto products_end = device_.create_timed_event(), transfers_end = device_.create_timed_event(),
         start = device_.create_timed_event();
    for (const absl::Status& status : {products_end.status(), transfers_end.status(), start.status()}) {
      if (!status.ok()) return status;
    }
    bench_.stream().record(**start);
    for (int i = 0, sent = 0; i < calls_; ++i) {
      for (; sent < (i + 1.0) / calls_ * *transfers; ++sent) transfers_->submit(reduce);
      bench_.stream().submit(bench_.whole());
    }
    bench_.stream().record(**products_end);
    transfers_->record(**transfers_end);
    absl::Status status = bench_.stream().synchronize();
    status.Update(transfers_->synchronize());
    if (!status.ok()) return status;
    const auto took = device_.seconds_between(**start, **products_end),
               beside = device_.seconds_between(**start, **transfers_end);
    if (!took.ok()) return took.status();
    if (!beside.ok()) return beside.status();
    return std::clamp((*took - alone_) / std::min(*took, *beside), 0.0, kMost);
  }

  // A receive waits until the other one's products are done.
  absl::StatusOr<double> send_slowdown() {
    const Work message = this->message();
    if (pair_.rank() == 0) {
      transfers_->submit(message);
      const auto took = bench_.timer().seconds(bench_.stream(), calls_, bench_.whole());
      absl::Status status = transfers_->synchronize();
      status.Update(took.status());
      if (!status.ok()) return status;
      return std::clamp(1 - alone_ / *took, 0.0, kMost);
    }
    const auto took = bench_.timer().seconds(bench_.stream(), 2 * calls_, bench_.whole());
    if (!took.ok()) return took.status();
    transfers_->submit(message);
    const absl::Status sent = transfers_->synchronize();
    if (!sent.ok()) return sent;
    return 0;
  }

  // Rank 0 has four products where the other one has five, and waits for it: its clock rises. From the cube law of
  // forecast::clock_of().
  absl::StatusOr<double> waiting_power() {
    const int mine = pair_.rank() == 0 ? kProducts : kProducts + 1;
    const auto busy = rounds(mine, message(), [](double products, double, double round) { return products / round; });
    if (!busy.ok()) return busy.status();
    const auto products = rounds(mine, message(), [](double took, double, double) { return took; });
    if (!products.ok()) return products.status();
    const double clock = alone_ / calls_ * mine / *products;
    return std::clamp((1 / (clock * clock * clock) - *busy) / (1 - *busy), 0.01, 1.0);
  }

  // Of so many products and a call behind them, again and again until the clock has found its place: the mean of what
  // `figure` makes of the seconds of the products, the call and both.
  absl::StatusOr<double> rounds(int products, const Work& call, double (*figure)(double, double, double)) {
    std::vector<std::unique_ptr<backend::Event>> events;
    for (size_t i = 0; i < 2 * rounds_ + 1; ++i) {
      auto event = device_.create_timed_event();
      if (!event.ok()) return event.status();
      events.push_back(*std::move(event));
    }
    Stream& stream = bench_.stream();
    for (size_t i = 0; i < rounds_; ++i) {
      stream.record(*events[2 * i]);
      for (int j = 0; j < products; ++j) stream.submit(bench_.whole());
      stream.record(*events[2 * i + 1]);
      stream.submit(call);
    }
    stream.record(*events.back());
    if (absl::Status status = stream.synchronize(); !status.ok()) return status;
    double sum = 0;
    for (size_t i = rounds_ / 2; i < rounds_; ++i) {
      const auto took = device_.seconds_between(*events[2 * i], *events[2 * i + 1]),
                 called = device_.seconds_between(*events[2 * i + 1], *events[2 * i + 2]);
      if (!took.ok()) return took.status();
      if (!called.ok()) return called.status();
      sum += figure(*took, *called, *took + *called);
    }
    return sum / static_cast<double>(rounds_ - rounds_ / 2);
  }

  // From rank 1 to rank 0.
  Work message() const {
    return [this](Stream& s) {
      return pair_.rank() == 0 ? pair_.recv(s, 1, Out(floats(*y_, kMessageBytes)))
                               : pair_.send(s, 0, In(floats(*x_, kMessageBytes)));
    };
  }
  static constexpr uint64_t kMessageBytes = 4096;

  static View floats(Memory& memory, uint64_t bytes) {
    View view;
    view.buffer = 0;
    view.shape = backend::Shape{static_cast<int64_t>(bytes / sizeof(float))};
    view.data = memory.data();
    return view;
  }

  backend::Device& device_;
  backend::Communicator& pair_;
  const StepRateOptions& options_;
  Bench bench_;
  std::unique_ptr<Memory> x_, y_;
  std::unique_ptr<Stream> transfers_;
  int calls_ = 0;  // Of products, alike on both.
  size_t rounds_ = 0;
  double alone_ = 0;  // Seconds of them, with nothing beside.
};

}  // namespace

// Least squares: seconds = start + flops / sustained.
absl::StatusOr<v1::ProductRates> measure_products(backend::Device& device, const StepRateOptions& options) {
  Bench bench(device, options);
  if (absl::Status status = bench.prepare(); !status.ok()) return status;
  if (absl::Status status = bench.heat(); !status.ok()) return status;
  std::vector<std::pair<double, double>> points;
  for (int64_t rows = options.rows / 8; rows <= options.rows; rows *= 2) {
    const double share = static_cast<double>(rows) / static_cast<double>(options.rows);
    const int calls = bench.calls_in(options.batch_seconds / share / 5);
    const auto seconds = bench.timer().seconds_of_one(bench.stream(), 5, calls, bench.product().rows(rows));
    if (!seconds.ok()) return seconds.status();
    points.emplace_back(bench.product().flops(rows), *seconds);
  }
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [flops, seconds] : points) {
    x += flops;
    y += seconds;
    xx += flops * flops;
    xy += flops * seconds;
  }
  const auto n = static_cast<double>(points.size());
  const double slope = (n * xy - x * y) / (n * xx - x * x);
  v1::ProductRates rates;
  rates.set_sustained_flops(1 / slope);
  rates.set_start_seconds(std::max(0.0, (y - slope * x) / n));
  return rates;
}

absl::StatusOr<BesideRates> measure_beside(backend::Device& device, backend::Communicator& pair,
                                           const StepRateOptions& options) {
  BesideMeter meter(device, pair, options);
  if (absl::Status status = meter.prepare(); !status.ok()) return status;
  return meter.measure();
}

}  // namespace telar::bench
