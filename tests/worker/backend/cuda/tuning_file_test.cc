#include "worker/backend/cuda/tuning_file.h"

#include <cstring>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace telar::backend::cuda {
namespace {

using ::testing::HasSubstr;

class TuningFileTest : public ::testing::Test {
 protected:
  TuningFileTest() { std::remove(path_.c_str()); }
  static cublasLtMatmulAlgo_t algorithm(uint64_t first) {
    cublasLtMatmulAlgo_t made{};
    made.data[0] = first;
    made.data[7] = ~first;
    return made;
  }
  static bool same(const std::optional<cublasLtMatmulAlgo_t>& a, const cublasLtMatmulAlgo_t& b) {
    return a.has_value() && std::memcmp(&*a, &b, sizeof(b)) == 0;
  }
  const std::string path_ = ::testing::TempDir() + "/tuning_file_test.txt";
};

TEST_F(TuningFileTest, KeepsTheLastChoiceOfEachMachine) {
  {
    auto file = TuningFile::open(path_, "Some GPU/1");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_FALSE((*file)->find("p").has_value());
    (*file)->add("p", algorithm(1));
    (*file)->add("q", algorithm(2));
    (*file)->add("p", algorithm(0xfedcba9876543210));
    EXPECT_TRUE(same((*file)->find("p"), algorithm(0xfedcba9876543210)));
  }
  auto other = TuningFile::open(path_, "Some GPU/2");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE((*other)->find("p").has_value());
  (*other)->add("p", algorithm(3));
  auto again = TuningFile::open(path_, "Some GPU/1");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(same((*again)->find("p"), algorithm(0xfedcba9876543210)));
  EXPECT_TRUE(same((*again)->find("q"), algorithm(2)));
}

TEST_F(TuningFileTest, NamesTheLineThatItCannotRead) {
  for (const std::string& bad : {std::string("GPU product 12"), "GPU product " + std::string(128, 'g'),
                                 "GPU product " + std::string(128, '0') + " more", std::string("")}) {
    std::ofstream(path_) << "GPU product " << std::string(128, 'a') << "\n" << bad << "\n";
    const absl::Status status = TuningFile::open(path_, "GPU").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + ":2: got '" + bad.substr(0, 80)));
  }
}

TEST_F(TuningFileTest, APathThatCannotBeWrittenIsRefused) {
  const absl::Status status = TuningFile::open("/nowhere/tuning.txt", "GPU").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'/nowhere/tuning.txt': cannot be opened"));
}

}  // namespace
}  // namespace telar::backend::cuda
