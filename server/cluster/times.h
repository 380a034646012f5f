// Wall-clock times as protobuf has them.
#pragma once

#include <google/protobuf/timestamp.pb.h>

#include "common/clock.h"

namespace telar::server::cluster {

inline google::protobuf::Timestamp to_timestamp(Clock::Wall time) {
  const auto nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  google::protobuf::Timestamp stamp;
  stamp.set_seconds(nanos / 1'000'000'000);
  stamp.set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return stamp;
}

inline Clock::Wall to_wall(const google::protobuf::Timestamp& stamp) {
  return Clock::Wall(std::chrono::duration_cast<Clock::Wall::duration>(std::chrono::seconds(stamp.seconds()) +
                                                                       std::chrono::nanoseconds(stamp.nanos())));
}

inline Clock::Wall after(Clock::Wall time, double seconds) {
  return time + std::chrono::duration_cast<Clock::Wall::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace telar::server::cluster
