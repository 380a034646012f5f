// Time, injectable: tests play leases and back-offs without sleeping.
#pragma once

#include <chrono>

namespace telar {

class Clock {
 public:
  using Steady = std::chrono::steady_clock::time_point;
  using Wall = std::chrono::system_clock::time_point;
  virtual ~Clock() = default;
  virtual Steady now() const = 0;  // For leases and deadlines; never jumps.
  virtual Wall wall() const = 0;   // For records that people read.
};

class RealClock final : public Clock {
 public:
  Steady now() const override { return std::chrono::steady_clock::now(); }
  Wall wall() const override { return std::chrono::system_clock::now(); }
};

}  // namespace telar
