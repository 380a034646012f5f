#include "bench/sectors.h"

#include <gtest/gtest.h>

#include <sstream>

namespace telar::bench {
namespace {

// As the tool prints it: lines of its own, a heading, a line a metric of each launch with a launch's fields repeated,
// and behind the values those of its rules, which here are empty.
constexpr const char* kHeading =
    "==PROF== Connected to process 4711 (/opt/telar/bin/bench_kernels)\n"
    "==PROF== Profiling \"norm_kernel\" - 0: 0%....50%....100% - 1 pass\n"
    "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Context\",\"Stream\",\"Block Size\","
    "\"Grid Size\",\"Device\",\"CC\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\",\"Rule Name\","
    "\"Rule Type\",\"Rule Description\",\"Estimated Speedup Type\",\"Estimated Speedup\"\n";

std::string line(int id, const std::string& kernel, const std::string& metric, const std::string& value) {
  return "\"" + std::to_string(id) + "\",\"4711\",\"bench_kernels\",\"127.0.0.1\",\"" + kernel +
         "\",\"1\",\"13\",\"(128, 1, 1)\",\"(16384, 1, 1)\",\"0\",\"9.0\",\"Command line profiler "
         "metrics\",\"l1tex__t_" +
         metric + ".sum\",\"sector\",\"" + value + "\",\"\",\"\",\"\",\"\",\"\"\n";
}

std::string launch(int id, const std::string& kernel, const std::string& load_sectors, const std::string& loads,
                   const std::string& store_sectors, const std::string& stores) {
  return line(id, kernel, "requests_pipe_lsu_mem_global_op_ld", loads) +
         line(id, kernel, "requests_pipe_lsu_mem_global_op_st", stores) +
         line(id, kernel, "sectors_pipe_lsu_mem_global_op_ld", load_sectors) +
         line(id, kernel, "sectors_pipe_lsu_mem_global_op_st", store_sectors);
}

TEST(Sectors, AreReadFromTheToolsLines) {
  const std::string norm = "void telar::backend::cuda::norm_kernel<0, 1, 3, 1, __nv_bfloat16>(const T5 *, \"\"x\"\")";
  std::istringstream csv(kHeading + launch(0, norm, "25,165,824", "1,572,864", "12,582,912", "786,432") +
                         "==PROF== Profiling \"norm_kernel\" - 1: 0%....100% - 1 pass\n" +
                         launch(1, norm, "640", "32", "160", "10") + launch(2, "count_kernel", "120", "60", "0", "0") +
                         launch(3, "other_kernel", "n/a", "n/a", "64", "16") + "==PROF== Disconnected\n");
  const auto sectors = read_sectors(csv);
  ASSERT_EQ(sectors.size(), 3u);
  const auto& of_norm =
      sectors.at("void telar::backend::cuda::norm_kernel<0, 1, 3, 1, __nv_bfloat16>(const T5 *, \"x\")");
  EXPECT_EQ(of_norm.loads, 20);  // Of the second launch.
  EXPECT_EQ(of_norm.stores, 16);
  EXPECT_EQ(sectors.at("count_kernel").loads, 2);
  EXPECT_EQ(sectors.at("count_kernel").stores, 0);
  EXPECT_EQ(sectors.at("other_kernel").loads, 0);
  EXPECT_EQ(sectors.at("other_kernel").stores, 4);
}

TEST(Sectors, ThereAreNoneWithoutAHeading) {
  std::istringstream csv("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n\"1\",\"2\"\n");
  EXPECT_TRUE(read_sectors(csv).empty());
}

}  // namespace
}  // namespace telar::bench
