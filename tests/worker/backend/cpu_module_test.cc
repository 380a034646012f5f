// libtelar_cpu.so as telar-rank loads it: by name, from beside the program, with no CPU library linked in.
#include <dlfcn.h>

#include <filesystem>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/key_value_store.h"
#include "worker/backend/module.h"

namespace telar::backend {
namespace {

TEST(CpuModule, OpensADeviceWithKernelsAndCommunicators) {
  fakes::InProcessStore store;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto device = open_device("cpu", {});
      ASSERT_TRUE(device.ok()) << device.status();
      auto memory = (*device)->allocate(3 * sizeof(float));
      ASSERT_TRUE(memory.ok()) << memory.status();
      auto stream = (*device)->create_stream("compute", true);
      ASSERT_TRUE(stream.ok()) << stream.status();
      auto group =
          (*device)->create_communicator(store, {.name = "world", .rank = rank, .size = 2, .listen_host = "127.0.0.1"});
      ASSERT_TRUE(group.ok()) << group.status();
      View x;
      x.buffer = 0;
      x.shape = Shape{3};
      x.data = (*memory)->data();
      const std::function<absl::Status(Stream&)> work = [&](Stream& s) {
        absl::Status status = (*device)->kernels().fill(s, 1.5f + static_cast<float>(rank), Out(x));
        return status.ok() ? (*group)->all_reduce(s, ReduceOp::kSum, InOut(x)) : status;
      };
      (*stream)->submit(work);
      ASSERT_EQ((*stream)->synchronize(), absl::OkStatus());
      std::vector<float> host(3);
      ASSERT_EQ((*device)->copy_to_host(x.data, host.data(), x.bytes()), absl::OkStatus());
      EXPECT_THAT(host, ::testing::Each(4.0f));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(CpuModule, ShowsOnlyItsEntry) {
  ASSERT_TRUE(open_device("cpu", {}).ok());
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libtelar_cpu.so";
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(module, nullptr) << dlerror();
  EXPECT_NE(dlsym(module, kModuleSymbol), nullptr);
  EXPECT_EQ(dlsym(module, "_ZN5telar7backend3cpu14create_kernelsEv"), nullptr);
  dlclose(module);
}

TEST(CpuModule, AnUnknownBackendIsNamed) {
  const absl::Status status = open_device("abacus", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("backend 'abacus': no libtelar_abacus.so"));
}

}  // namespace
}  // namespace telar::backend
