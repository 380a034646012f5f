#include "tests/house/layers.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/house/sources.h"

namespace telar::house {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Layers real_layers() { return Layers(read_file(tree_root() / "cmake/layers.txt")); }

TEST(Layers, TheTreeKeepsThem) {
  const Layers layers = real_layers();
  EXPECT_THAT(layers.problems(), IsEmpty()) << joined(layers.problems());
  const std::vector<std::string> files =
      files_below(tree_root(), product_folders(), {".h", ".cc", ".cu", ".cuh", ".in"});
  ASSERT_GT(files.size(), 20u) << "no tree at " << tree_root();
  std::vector<std::string> violations;
  for (const std::string& file : files) {
    for (std::string& violation : check_includes(layers, file, read_file(tree_root() / file))) {
      violations.push_back(std::move(violation));
    }
  }
  EXPECT_THAT(violations, IsEmpty()) << joined(violations);
}

struct Planted {
  const char* path;
  const char* include;
  const char* complaint;  // Empty: allowed.
};

TEST(Layers, PlantedViolationsAreFound) {
  const Planted cases[] = {
      {"worker/engine/x.cc", "#include \"worker/backend/device.h\"", ""},
      {"worker/engine/x.cc", "#include \"worker/engine/op.h\"", ""},
      {"worker/engine/x.cc", "#include <vector>", ""},
      {"worker/engine/x.cc", "#include \"absl/status/status.h\"", ""},
      {"worker/engine/x.cc", "  #  include \"worker/model/layer.h\"", "may not include worker/model"},
      {"worker/engine/x.cc", "#include \"worker/backend/cpu/cpu.h\"", "may not include worker/backend/cpu"},
      {"worker/engine/x.cc", "#include \"common/clock.h\"", "may not include common"},
      {"worker/engine/x.cc", "#include \"op.h\"", "not written from the root"},
      {"worker/engine/x.cc", "#include \"tests/fakes/clock.h\"", "product code includes"},
      {"worker/engine/x.cc", "#include \"worker/attic/op.h\"", "may not include worker/attic"},
      {"worker/attic/x.cc", "#include <vector>", "has no line in cmake/layers.txt"},
      {"worker/backend/x.cc", "#include <cuda_runtime.h>", "belongs into worker/backend/cuda only"},
      {"worker/backend/cpu/x.cc", "#include <nccl.h>", "belongs into worker/backend/cuda only"},
      {"worker/backend/cuda/x.cu", "#include <oneapi/dnnl/dnnl.hpp>", "belongs into worker/backend/cpu only"},
      {"worker/train/x.cc", "#include \"gloo/context.h\"", "belongs into worker/backend/cpu only"},
      {"worker/backend/cuda/x.cu", "#include <cudnn.h>", ""},
      {"worker/train/x.cc", "#include \"telar/v1/cluster.grpc.pb.h\"", ""},
      {"server/jobs/x.cc", "#include \"telar/v1/jobs.pb.h\"", ""},
      {"server/jobs/x.cc", "#include \"telar/v1/jobs.grpc.pb.h\"", "may not use the gRPC stubs"},
      {"server/store/x.cc", "#include \"telar/v1/jobs.pb.h\"", "may not include proto/service"},
      {"worker/plan/x.cc", "#include \"telar/v1/spec.pb.h\"", ""},
      {"client/output/x.cc", "#include \"google/rpc/status.pb.h\"", "may not include proto/google"}};
  for (const auto& [path, include, complaint] : cases) {
    SCOPED_TRACE(std::string(path) + ": " + include);
    const auto violations = check_includes(real_layers(), path, std::string("#pragma once\n") + include + "\n");
    if (*complaint == '\0') {
      EXPECT_THAT(violations, IsEmpty()) << joined(violations);
    } else {
      EXPECT_THAT(violations, ElementsAre(HasSubstr(complaint)));
    }
  }
}

TEST(Layers, SaysWhatIsWrongWithTheList) {
  EXPECT_THAT(Layers("a: b # why\nb:\n").problems(), IsEmpty());
  EXPECT_THAT(Layers("a b\n").problems(), ElementsAre(HasSubstr("no ':'")));
  EXPECT_THAT(Layers("a: b\na: c\n").problems(), ElementsAre(HasSubstr("second line for a")));
  EXPECT_THAT(Layers("a: b\nb: c\nc: a\n").problems(), ElementsAre(HasSubstr("c -> a closes a circle")));
}

}  // namespace
}  // namespace telar::house
