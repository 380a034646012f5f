// The thread that works out what placed jobs should need, as `telar plan` would say it, one after another: Job.forecast
// and telar_memory_forecast_bytes. Nothing waits for it. In memory only: after a restart of the coordinator all of it
// is worked out again.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/jobs/job_manager.h"

namespace telar::server::jobs {

// Of a resolved spec on the devices of these nodes. FAILED_PRECONDITION (NO_RATES): nothing is known of their devices.
absl::StatusOr<v1::JobForecast> forecast_of(const v1::JobSpec& spec, const std::vector<v1::Node>& nodes);

class Forecaster {
 public:
  explicit Forecaster(JobManager* manager);
  ~Forecaster();  // Ends behind the forecast at hand, which may take seconds for jobs of thousands of devices.
  Forecaster(const Forecaster&) = delete;
  Forecaster& operator=(const Forecaster&) = delete;

 private:
  void loop();
  bool stopping();
  const v1::JobForecast& forecast(const ForecastWish& wish);  // Empty: there is none.

  JobManager* const manager_;
  // Of the thread alone: by what matters of spec and devices, so that the tasks of an array cost one.
  std::map<std::string, v1::JobForecast> known_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool stop_ = false;  // Guarded by mutex_.
  std::thread thread_;
};

}  // namespace telar::server::jobs
