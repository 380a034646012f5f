#include "worker/backend/cuda/tuner.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace telar::backend::cuda {
namespace {

constexpr int kMostCalls = 10000, kMostColdCalls = 32;  // Each of the latter has its own events.
constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

double Tuner::turn_ms() {
  static const double turn = [] {
    const char* text = std::getenv("TELAR_TUNING_MS");
    const double asked = text == nullptr ? 0 : std::strtod(text, nullptr);
    return asked > 0 ? asked : 12.0;
  }();
  return turn;
}

Tuner::Tuner(cudaStream_t stream) : stream_(stream) {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device) != cudaSuccess || bytes <= 0 ||
      cudaMallocAsync(&cache_, static_cast<size_t>(bytes), stream) != cudaSuccess) {
    cudaGetLastError();
    cache_ = nullptr;
    return;
  }
  cache_bytes_ = static_cast<size_t>(bytes);
}

Tuner::~Tuner() {
  for (const Span& span : spans_) {
    cudaEventDestroy(span.start);
    cudaEventDestroy(span.stop);
  }
  if (cache_ != nullptr) cudaFreeAsync(cache_, stream_);
}

Tuner::Span& Tuner::span(size_t i) {
  while (spans_.size() <= i) {
    Span made;
    cudaEventCreate(&made.start);
    cudaEventCreate(&made.stop);
    spans_.push_back(made);
  }
  return spans_[i];
}

void Tuner::fill_cache() {
  if (cache_ != nullptr) cudaMemsetAsync(cache_, 0, cache_bytes_, stream_);
}

bool Tuner::time(const Span& span, const Launch& launch, int calls) {
  bool ok = cudaEventRecord(span.start, stream_) == cudaSuccess;
  for (int call = 0; call < calls; ++call) ok = launch() && ok;
  return cudaEventRecord(span.stop, stream_) == cudaSuccess && ok;
}

double Tuner::elapsed(const Span& span) {
  float ms = 0;
  const bool ok =
      cudaEventSynchronize(span.stop) == cudaSuccess && cudaEventElapsedTime(&ms, span.start, span.stop) == cudaSuccess;
  return ok ? ms : kNever;
}

double Tuner::once(const Launch& launch) {
  const Span own = span(0);
  for (int call = 0; call < 2; ++call) {
    fill_cache();
    if (!time(own, launch, 1) || cudaEventSynchronize(own.stop) != cudaSuccess) return kNever;
  }
  return elapsed(own);
}

std::vector<double> Tuner::compare(const std::vector<Contender>& contenders, int rounds, bool cold) {
  const size_t count = contenders.size();
  std::vector<std::vector<double>> times(count);
  std::vector<int> calls;
  for (const Contender& contender : contenders) {
    calls.push_back(
        static_cast<int>(std::clamp(turn_ms() / contender.ms, 2.0, 1.0 * (cold ? kMostColdCalls : kMostCalls))));
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t turn = 0; turn < count; ++turn) {
      const size_t i = (turn + static_cast<size_t>(round)) % count;
      const int spans = cold ? calls[i] : 1, each = cold ? 1 : calls[i];
      bool ok = true;
      for (int s = 0; s < spans; ++s) {
        if (cold) fill_cache();
        ok = time(span(static_cast<size_t>(s)), contenders[i].launch, each) && ok;
      }
      double sum = ok ? 0 : kNever;
      for (int s = 0; s < spans; ++s) sum += elapsed(span(static_cast<size_t>(s)));
      times[i].push_back(sum / calls[i]);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_one : times) {
    std::nth_element(of_one.begin(), of_one.begin() + rounds / 2, of_one.end());
    medians.push_back(of_one[rounds / 2]);
  }
  return medians;
}

}  // namespace telar::backend::cuda
