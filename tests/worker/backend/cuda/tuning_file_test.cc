#include "worker/backend/cuda/tuning_file.h"

#include <unistd.h>

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
  using Choice = TuningFile::Choice;
  static Choice algorithm(uint64_t first) {
    Choice made{.algorithm = cublasLtMatmulAlgo_t()};
    made.algorithm->data[0] = first;
    made.algorithm->data[7] = ~first;
    return made;
  }
  static bool same(const std::optional<Choice>& a, const Choice& b) {
    return a.has_value() && a->algorithm.has_value() &&
           std::memcmp(&*a->algorithm, &*b.algorithm, sizeof(cublasLtMatmulAlgo_t)) == 0;
  }
  const std::string path_ = ::testing::TempDir() + "/tuning_file_test_" + std::to_string(getpid());
};

TEST_F(TuningFileTest, KeepsTheLastChoiceOfEachMachine) {
  {
    auto file = TuningFile::open(path_, "Some GPU/1");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_FALSE((*file)->find("p").has_value());
    (*file)->add("p", algorithm(1), 0.5);
    (*file)->add("q", algorithm(2), 1e-5);
    (*file)->add("g", Choice(), 1234.5);
    (*file)->add("p", algorithm(0xfedcba9876543210), 0.25);
    EXPECT_TRUE(same((*file)->find("p"), algorithm(0xfedcba9876543210)));
  }
  auto other = TuningFile::open(path_, "Some GPU/2");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE((*other)->find("p").has_value());
  (*other)->add("p", algorithm(3), 1);
  auto again = TuningFile::open(path_, "Some GPU/1");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(same((*again)->find("p"), algorithm(0xfedcba9876543210)));
  EXPECT_TRUE(same((*again)->find("q"), algorithm(2)));
  ASSERT_TRUE((*again)->find("g").has_value());
  EXPECT_FALSE((*again)->find("g")->algorithm.has_value());
}

TEST_F(TuningFileTest, ReadsLinesWithoutATime) {
  std::ofstream(path_) << "GPU product " << std::string(128, '0') << "\nGPU other apart\n";
  auto file = TuningFile::open(path_, "GPU");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->find("product")->algorithm.has_value());
  EXPECT_FALSE((*file)->find("other")->algorithm.has_value());
}

TEST_F(TuningFileTest, TheLogNamesItsColumnsOnce) {
  setenv("TELAR_TUNING_LOG", path_.c_str(), 1);
  log_tuning("p", {.candidates = 20, .first_ms = 2, .proposed_ms = 1.5, .best_ms = 1, .multiply_adds = 1e9});
  log_tuning("q", {.candidates = 9, .best_ms = 1, .apart_ms = 0.5, .is_apart = true, .multiply_adds = 1e9});
  unsetenv("TELAR_TUNING_LOG");
  std::ifstream in(path_);
  std::string names, first, second, rest;
  std::getline(in, names);
  std::getline(in, first);
  std::getline(in, second);
  EXPECT_FALSE(std::getline(in, rest));
  EXPECT_THAT(names, HasSubstr("product\tcandidates\tfirst_ms"));
  EXPECT_EQ(first, "p\t20\t2.0000\t1.5000\t1.0000\t0.0000\t0.000\tproduct\t2.0");
  EXPECT_EQ(second, "q\t9\t0.0000\t0.0000\t1.0000\t0.5000\t0.000\tapart\t4.0");
}

TEST_F(TuningFileTest, NamesTheLineThatItCannotRead) {
  for (const std::string& bad :
       {std::string("GPU product 12"), "GPU product " + std::string(128, 'g'),
        "GPU product " + std::string(128, '0') + " more", std::string(""), std::string("GPU product apart 1.5"),
        std::string("GPU product apart ms"), std::string("GPU product apart 1ms 2")}) {
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
