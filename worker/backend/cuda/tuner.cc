#include "worker/backend/cuda/tuner.h"

#include <algorithm>
#include <limits>

namespace telar::backend::cuda {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

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

bool Tuner::time(const Span& span, const Launch& launch) {
  if (cache_ != nullptr) cudaMemsetAsync(cache_, 0, cache_bytes_, stream_);
  const bool started = cudaEventRecord(span.start, stream_) == cudaSuccess;
  const bool launched = launch();
  return cudaEventRecord(span.stop, stream_) == cudaSuccess && started && launched;
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
    if (!time(own, launch) || cudaEventSynchronize(own.stop) != cudaSuccess) return kNever;
  }
  return elapsed(own);
}

std::vector<double> Tuner::compare(const std::vector<Launch>& launches, int rounds) {
  std::vector<std::vector<double>> times(launches.size());
  for (int round = 0; round < rounds; ++round) {
    std::vector<bool> ok(launches.size());
    for (size_t i = 0; i < launches.size(); ++i) ok[i] = time(span(i), launches[i]);
    for (size_t i = 0; i < launches.size(); ++i) times[i].push_back(ok[i] ? elapsed(span(i)) : kNever);
  }
  std::vector<double> medians;
  for (std::vector<double>& of_one : times) {
    std::nth_element(of_one.begin(), of_one.begin() + rounds / 2, of_one.end());
    medians.push_back(of_one[rounds / 2]);
  }
  return medians;
}

}  // namespace telar::backend::cuda
