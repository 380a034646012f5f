#include "worker/plan/paths.h"

#include <fmt/format.h>

namespace telar::plan {
namespace {

using Paths = google::protobuf::RepeatedPtrField<std::string>;

void add(const std::string& field, const Paths& paths, std::vector<SpecPath>& all) {
  for (int i = 0; i < paths.size(); ++i) all.push_back({fmt::format("{}[{}]", field, i), paths[i]});
}

}  // namespace

std::vector<SpecPath> paths_of(const v1::JobSpec& spec) {
  std::vector<SpecPath> all;
  add("data.train", spec.data().train(), all);
  add("data.eval", spec.data().eval(), all);
  for (int i = 0; i < spec.data().sources_size(); ++i) {
    add(fmt::format("data.sources[{}].train", i), spec.data().sources(i).train(), all);
    add(fmt::format("data.sources[{}].eval", i), spec.data().sources(i).eval(), all);
  }
  all.push_back({"tokenizer.path", spec.tokenizer().path()});
  all.push_back({"checkpoint.init_from", spec.checkpoint().init_from()});
  std::erase_if(all, [](const SpecPath& one) { return one.path.empty(); });
  return all;
}

}  // namespace telar::plan
