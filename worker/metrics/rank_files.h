// Files in a rank's directory that worker and rank both name; what they are is in rank.proto.
#pragma once

namespace telar::metrics {

inline constexpr const char* kWishesFile = "wishes.json";  // A RankWishes, by the worker.

}  // namespace telar::metrics
