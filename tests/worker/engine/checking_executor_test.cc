#include <gmock/gmock.h>

#include <algorithm>

#include "tests/worker/engine/testing.h"
#include "worker/engine/executor.h"

namespace telar::engine {
namespace {

using testing::add;
using ::testing::HasSubstr;
using testing::kComputeLane;
using testing::persistent;
using testing::read;
using testing::transient;
using testing::update;
using testing::write;

// y = x + z, byte by byte, whatever is declared.
testing::Body add_bytes(Tensor x, Tensor z, Tensor y) {
  return [x, z, y](const RunContext& context, backend::Stream&) {
    const Addresses& at = *context.addresses;
    std::transform(at.at(x), at.at(x) + x.bytes(), at.at(z), at.at(y), [](std::byte a, std::byte b) {
      return static_cast<std::byte>(std::to_integer<int>(a) + std::to_integer<int>(b));
    });
    return absl::OkStatus();
  };
}

class CheckingExecutorTest : public ::testing::Test {
 protected:
  std::string run() {
    const Plan planned = plan(program_).value();
    executor_ = create_checking_executor(program_, planned, *device_, {}).value();
    executor_->bind(outside_, outside_bytes_);
    return std::string(executor_->run().message());
  }

  std::unique_ptr<backend::Device> device_ = testing::create_device();
  Program program_;
  Tensor x_ = persistent(program_, "x", 16);
  Tensor y_ = persistent(program_, "y", 16);
  Tensor z_ = persistent(program_, "z", 16);
  Tensor outside_ = testing::external(program_, "outside", 16);
  std::byte outside_bytes_[16] = {};
  std::unique_ptr<Executor> executor_;
};

TEST_F(CheckingExecutorTest, AnHonestOpPassesAndItsResultStands) {
  add(program_, "set", kComputeLane, {write(x_)}, [this](const RunContext& context, backend::Stream&) {
    std::fill_n(context.addresses->at(x_), 16, std::byte{3});
    return absl::OkStatus();
  });
  add(program_, "add", kComputeLane, {read(x_), update(y_)}, add_bytes(x_, y_, y_));
  add(program_, "out", kComputeLane, {read(y_), update(outside_)}, add_bytes(y_, outside_, outside_));
  outside_bytes_[2] = std::byte{10};
  EXPECT_EQ(run(), "");
  EXPECT_EQ(std::to_integer<int>(*executor_->address(y_)), 3);
  EXPECT_TRUE(executor_->run().ok());
  EXPECT_EQ(std::to_integer<int>(*executor_->address(y_)), 6);
  EXPECT_EQ(std::to_integer<int>(outside_bytes_[2]), 10 + 3 + 6);
}

TEST_F(CheckingExecutorTest, AnUndeclaredReadIsNamed) {
  add(program_, "liar", kComputeLane, {read(x_), write(y_)}, add_bytes(x_, z_, y_));
  EXPECT_THAT(run(), HasSubstr("op 'liar' reads bytes of 'z' without declaring it"));
}

TEST_F(CheckingExecutorTest, AWriteOnlyArgumentThatIsReadIsNamed) {
  add(program_, "set", kComputeLane, {write(x_)}, [this](const RunContext& context, backend::Stream&) {
    std::fill_n(context.addresses->at(x_), 16, std::byte{3});
    return absl::OkStatus();
  });
  add(program_, "accumulates", kComputeLane, {read(x_), write(y_)}, add_bytes(x_, y_, y_));
  EXPECT_THAT(run(), HasSubstr("op 'accumulates' reads bytes of 'y'"));
}

TEST_F(CheckingExecutorTest, AnUndeclaredWriteIsNamed) {
  add(program_, "liar", kComputeLane, {read(x_)}, add_bytes(x_, x_, z_));
  EXPECT_THAT(run(), HasSubstr("op 'liar' writes without declaring it byte 0 of 'z'"));
}

TEST_F(CheckingExecutorTest, AWriteToAnInputIsNamed) {
  add(program_, "liar", kComputeLane, {read(x_), write(y_)}, [this](const RunContext& context, backend::Stream&) {
    std::fill_n(context.addresses->at(y_), 16, std::byte{1});
    context.addresses->at(x_)[5] = std::byte{1};
    return absl::OkStatus();
  });
  EXPECT_THAT(run(), HasSubstr("op 'liar' writes without declaring it byte 5 of 'x'"));
}

TEST_F(CheckingExecutorTest, AWriteBehindTheBufferIsNamed) {
  add(program_, "overrun", kComputeLane, {write(y_)}, [this](const RunContext& context, backend::Stream&) {
    std::fill_n(context.addresses->at(y_), 17, std::byte{1});
    return absl::OkStatus();
  });
  EXPECT_THAT(run(), HasSubstr("op 'overrun' writes without declaring it byte 16 of 'y'"));
}

TEST_F(CheckingExecutorTest, AnOutputLeftUnwrittenIsNamed) {
  add(program_, "short", kComputeLane, {write(y_)}, [this](const RunContext& context, backend::Stream&) {
    std::fill_n(context.addresses->at(y_), 12, std::byte{1});
    return absl::OkStatus();
  });
  EXPECT_THAT(run(), HasSubstr("op 'short' declares to write, but leaves, byte 12 of 'y'"));
}

TEST_F(CheckingExecutorTest, AnErrorOfAnOpNamesIt) {
  add(program_, "fails", kComputeLane, {write(y_)},
      [](const RunContext&, backend::Stream&) { return absl::InvalidArgumentError("bad shape"); });
  EXPECT_EQ(run(), "op 'fails' on lane compute: bad shape");
}

}  // namespace
}  // namespace telar::engine
