// Every job in deploy/examples/ is one that a coordinator would take.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "client/spec/reader.h"
#include "worker/plan/resolve.h"

namespace telar {
namespace {

std::vector<std::filesystem::path> examples() {
  const char* root = std::getenv("TELAR_SOURCE_DIR");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(root) + "/deploy/examples")) {
    files.push_back(entry.path());
  }
  return files;
}

v1::JobSpec read(const std::filesystem::path& file) {
  v1::JobSpec spec;
  for (const client::Problem& problem : client::read_spec_file(file.string(), std::cin, spec).problems) {
    ADD_FAILURE() << file << ": " << problem.text;
  }
  // deploy/quickstart.sh says where its text is.
  if (file.stem() == "quickstart") spec.mutable_data()->set_train(0, "/data/text.txt");
  return spec;
}

TEST(Examples, Resolve) {
  ASSERT_GE(examples().size(), 2u);
  for (const auto& file : examples()) {
    v1::JobSpec spec = read(file);
    for (const plan::SpecProblem& problem : plan::resolve(spec, v1::ResourceSpec::GPU)) {
      ADD_FAILURE() << file << ": " << problem.field << ": " << problem.description;
    }
  }
}

TEST(Examples, OneHasThreeDimensions) {
  int found = 0;
  for (const auto& file : examples()) {
    v1::JobSpec spec = read(file);
    plan::resolve(spec, v1::ResourceSpec::GPU);
    const v1::ParallelSpec& parallel = spec.parallel();
    if (parallel.tensor() > 1 && parallel.pipeline() > 1 && parallel.data() > 1) ++found;
  }
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace telar
