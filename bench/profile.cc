#include "bench/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "bench/ops.h"
#include "worker/engine/trace.h"

namespace telar::bench {

StepProfile make_profile(const engine::Program& program, const std::vector<double>& op_seconds, double step_seconds) {
  StepProfile profile{.step_seconds = step_seconds};
  std::map<std::tuple<std::string, std::string, std::string>, KindTime> kinds;
  for (size_t i = 0; i < program.ops().size(); ++i) {
    const engine::Op& op = program.ops()[i];
    const std::string kind = kind_of(op), kernel = kernel_of(op), phase(engine::name_of(op.phase));
    KindTime& time = kinds.try_emplace({kind, kernel, phase}, KindTime{kind, kernel, phase}).first->second;
    ++time.count;
    time.seconds += op_seconds[i];
    time.flops += op.cost.flops;
    time.bytes += traffic_of(op);
    profile.phases[phase] += op_seconds[i];
    profile.ops_seconds += op_seconds[i];
  }
  profile.phases["outside"] = step_seconds - profile.ops_seconds;
  for (auto& [key, time] : kinds) profile.kinds.push_back(std::move(time));
  std::sort(profile.kinds.begin(), profile.kinds.end(),
            [](const KindTime& a, const KindTime& b) { return a.seconds > b.seconds; });
  return profile;
}

std::string to_text(const StepProfile& profile) {
  std::string text = fmt::format("{:<30} {:<20} {:<10} {:>6} {:>10} {:>7} {:>9} {:>12}\n", "op", "kernel", "phase",
                                 "count", "ms a step", "share", "us each", "rate");
  const auto share = [&](double seconds) { return 100 * seconds / profile.step_seconds; };
  for (const KindTime& time : profile.kinds) {
    const double rate = (time.flops > 0 ? time.flops : time.bytes) / std::max(1e-12, time.seconds) / 1e12;
    text += fmt::format("{:<30} {:<20} {:<10} {:>6} {:>10.3f} {:>6.2f}% {:>9.1f} {:>8.4g} {}\n", time.kind, time.kernel,
                        time.phase, time.count, time.seconds * 1e3, share(time.seconds),
                        time.seconds * 1e6 / time.count, rate, time.flops > 0 ? "TFLOP/s" : "TB/s");
  }
  text += fmt::format("\n{:<30} {:>10} {:>7}\n", "phase (one stream, profiled)", "ms a step", "share");
  for (const auto& [phase, seconds] : profile.phases) {
    text += fmt::format("{:<30} {:>10.3f} {:>6.2f}%\n", phase, seconds * 1e3, share(seconds));
  }
  return text + fmt::format("{:<30} {:>10.3f}\n", "step", profile.step_seconds * 1e3);
}

}  // namespace telar::bench
