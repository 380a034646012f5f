// What a random number is for. Part of the counter, so that no two uses share a stream (backend::RandomKey).
#pragma once

#include <cstdint>
#include <string_view>

namespace telar::model {

enum class RandomPurpose : uint32_t { kInitialWeights = 1, kSampling = 2 };

// A tensor's stream under a purpose: FNV-1a of its logical name, so that it depends on no layout or order.
constexpr uint32_t tensor_stream(std::string_view name) {
  uint32_t hash = 2166136261u;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return hash;
}

}  // namespace telar::model
