// A job's spec, as text of three formats, and what the coordinator makes of it.
#include "client/output/message.h"
#include "client/spec/reader.h"
#include "telar/v1/spec.pb.h"
#include "tests/fuzz/input.h"
#include "worker/plan/resolve.h"

using telar::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  telar::fuzz::Input input(data, size);
  const uint8_t mode = input.byte();
  const auto format = static_cast<telar::client::Format>(mode % 3);
  const std::string text(input.rest());
  telar::v1::JobSpec spec;
  const auto reading = telar::client::read_spec("fuzz", text, format, spec);
  for (const auto& problem : reading.problems) {
    require(to_string(problem).find('\n') == std::string::npos, "a problem is one line");
  }
  if (!reading.problems.empty()) return 0;

  // What was accepted is printed, and read back as the same.
  telar::v1::JobSpec again;
  const std::string yaml = telar::client::to_yaml(spec);
  if (spec.ByteSizeLong() > 0) {
    const auto second = telar::client::read_spec("again", yaml, telar::client::Format::kYaml, again);
    require(second.problems.empty() && telar::client::to_yaml(again) == yaml, "a spec survives being printed");
  }
  // Filling in defaults ends, and does so once: a complete spec stays as it is.
  if (telar::plan::resolve(spec, telar::v1::ResourceSpec::CPU).empty()) {
    const std::string complete = spec.SerializeAsString();
    require(telar::plan::resolve(spec, telar::v1::ResourceSpec::CPU).empty(), "a complete spec is valid");
    telar::v1::JobSpec same;
    same.ParseFromString(complete);
    require(telar::client::to_yaml(same) == telar::client::to_yaml(spec), "a complete spec stays as it is");
  }
  return 0;
}
