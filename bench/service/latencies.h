// Times of calls by name, from any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace telar::bench {

class Latencies {
 public:
  using Steady = std::chrono::steady_clock::time_point;

  // A call that should have started at `due` was answered now.
  void add(const std::string& name, Steady due, bool ok) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - due).count();
    std::lock_guard<std::mutex> hold(mutex_);
    Series& series = all_[name];
    if (ok) {
      series.seconds.push_back(seconds);
    } else {
      ++series.failed;
    }
  }

  struct Row {
    std::string name;
    size_t count = 0;
    size_t failed = 0;
    double p50 = 0, p99 = 0, most = 0;  // Seconds.
  };
  // What was added since the last call, and forgets it.
  std::vector<Row> take() {
    std::lock_guard<std::mutex> hold(mutex_);
    std::vector<Row> rows;
    for (auto& [name, series] : all_) {
      std::sort(series.seconds.begin(), series.seconds.end());
      Row row{name, series.seconds.size(), series.failed};
      if (row.count > 0) {
        row.p50 = series.seconds[(row.count - 1) / 2];
        row.p99 = series.seconds[(row.count - 1) * 99 / 100];
        row.most = series.seconds.back();
      }
      rows.push_back(row);
    }
    all_.clear();
    return rows;
  }

 private:
  struct Series {
    std::vector<double> seconds;
    size_t failed = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Series> all_;
};

}  // namespace telar::bench
