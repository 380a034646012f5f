// Which paths a spec may name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/errors.h"
#include "server/jobs/admission.h"
#include "tests/fakes/fake_clock.h"
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Paths, EveryOneOutsideTheRootsIsNamedWithAllElseThatIsWrong) {
  const fakes::FakeClock clock;
  const cluster::Cluster cluster(&clock, std::chrono::seconds(10));
  v1::CreateJobRequest request;
  v1::JobSpec& spec = *request.mutable_spec();
  spec = tests::small_spec(1);
  spec.mutable_resources()->set_wait_for_capacity(true);
  spec.mutable_data()->clear_train();
  auto* source = spec.mutable_data()->add_sources();
  source->add_train("/data/a.txt");
  source->add_train("/data/../etc/shadow");
  source->add_eval("/etc/*");
  spec.mutable_checkpoint()->set_init_from("/database/x");
  spec.set_name("Not a label");
  const std::vector<QueueConfig> queues = {{.name = kDefaultQueue}};
  const Roots anything, data({"/data"});
  SchedulingContext context{.queues = &queues, .roots = &data, .find_job = {}};
  const absl::Status status = admit(request, cluster, context);
  std::vector<std::string> fields;
  for (const Violation& one : violations(status)) {
    fields.push_back(one.field);
    if (one.field == "spec.name") continue;
    EXPECT_THAT(one.description, HasSubstr("is not below an allowed root; allowed: /data"));
  }
  EXPECT_THAT(fields, ElementsAre("spec.name", "spec.data.sources[0].train[1]", "spec.data.sources[0].eval[0]",
                                  "spec.checkpoint.init_from"))
      << status;
  spec.set_name("label");
  context.roots = &anything;
  EXPECT_TRUE(admit(request, cluster, context).ok());
}

class Owners : public tests::ManagerTest {};

// Who repeats somebody else's request_id makes a job of their own, and sees nothing of the other's.
TEST_F(Owners, ARequestIdIsItsOwners) {
  connect();
  v1::CreateJobRequest request;
  *request.mutable_spec() = tests::small_spec(1);
  request.set_request_id("r1");
  const v1::Job ann = manager_->create(request, "ann").value();
  EXPECT_EQ(ann.owner(), "ann");
  EXPECT_EQ(manager_->create(request, "ann")->name(), ann.name());
  const v1::Job bob = manager_->create(request, "bob").value();
  EXPECT_NE(bob.name(), ann.name());

  v1::CreateJobArrayRequest array;
  *array.mutable_spec() = tests::small_spec(1);
  array.mutable_spec()->mutable_array()->set_size(2);
  array.set_request_id("r1");
  const auto of_ann = manager_->create_array(array, "ann").value(),
             of_bob = manager_->create_array(array, "bob").value();
  EXPECT_EQ(of_ann.jobs(1).owner(), "ann");
  EXPECT_EQ(of_bob.jobs(1).owner(), "bob");
  EXPECT_NE(of_ann.jobs(0).name(), of_bob.jobs(0).name());
  EXPECT_EQ(manager_->create_array(array, "ann")->jobs(0).name(), of_ann.jobs(0).name());

  EXPECT_EQ(cancel(ann.name(), "c1")->name(), ann.name());
  EXPECT_EQ(cancel(bob.name(), "c1")->name(), bob.name());
}

}  // namespace
}  // namespace telar::server::jobs
