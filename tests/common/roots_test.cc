#include "common/roots.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace telar {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(Roots, TextOfAPath) {
  const Roots roots({"/data/", "/scratch/a"});
  for (const char* right :
       {"/data", "/data/x", "/data/x/../y", "/data/*/part-[0-9].bin", "/scratch/a/b", "//data//x"}) {
    EXPECT_EQ(roots.problem(right), "") << right;
  }
  for (const char* wrong : {"/", "/database", "/data/..", "/data/../etc/passwd", "/scratch", "data/x", "../data",
                            "/data/*/../../etc/passwd", "/data/a?/..", "/proc/self/root/data"}) {
    EXPECT_NE(roots.problem(wrong), "") << wrong;
  }
  EXPECT_THAT(roots.problem("/etc/passwd"), HasSubstr("allowed: /data, /scratch/a"));
  EXPECT_EQ(Roots().problem("anything/.."), "");
  EXPECT_EQ(Roots({"/"}).problem("/etc"), "");
}

TEST(Roots, AnOpenFileIsWhereItIsWhateverItsName) {
  const fs::path folder = fs::path(testing::TempDir()) / ("telar-roots-" + std::to_string(getpid()));
  fs::create_directories(folder / "inside");
  fs::create_directories(folder / "outside");
  std::ofstream(folder / "inside/file") << "x";
  std::ofstream(folder / "outside/file") << "x";
  fs::create_symlink(folder / "outside/file", folder / "inside/link");
  fs::create_directory_symlink(folder / "outside", folder / "inside/folder");
  fs::create_symlink("file", folder / "inside/near");
  fs::create_directory_symlink(folder / "inside", folder / "door");  // A root may itself be reached by a link.
  const Roots roots({(folder / "door").string()});
  const auto check = [&](const std::string& name) {
    const int file = open((folder / name).c_str(), O_RDONLY);
    EXPECT_GE(file, 0) << name;
    const absl::Status status = roots.check_open(file, name);
    close(file);
    return status;
  };
  EXPECT_TRUE(check("inside/file").ok());
  EXPECT_TRUE(check("door/near").ok());
  for (const char* name : {"outside/file", "inside/link", "inside/folder/file", "door/link"}) {
    EXPECT_EQ(check(name).code(), absl::StatusCode::kPermissionDenied) << name;
  }
  EXPECT_THAT(std::string(check("inside/link").message()), HasSubstr("inside/link is " + folder.string()));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace telar
