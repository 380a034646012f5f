// Arrays: one request, many jobs.
#include "server/jobs/array.h"

#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using tests::small_spec;

class Array : public tests::ManagerTest {
 protected:
  static v1::CreateJobArrayRequest request(uint32_t size, const std::string& request_id = "") {
    v1::CreateJobArrayRequest one;
    *one.mutable_spec() = small_spec(1);
    one.mutable_spec()->mutable_array()->set_size(size);
    one.set_request_id(request_id);
    return one;
  }
  static v1::ArrayParameter& vary(v1::CreateJobArrayRequest& request, const std::string& field,
                                  const std::vector<std::string>& values) {
    v1::ArrayParameter& parameter = *request.mutable_spec()->mutable_array()->add_parameters();
    parameter.set_field(field);
    for (const std::string& value : values) parameter.add_values(value);
    return parameter;
  }
};

TEST_F(Array, MakesOneJobATaskWithItsOwnValues) {
  connect();
  v1::CreateJobArrayRequest one = request(3, "a1");
  vary(one, "optimizer.learning_rate", {"1e-3", "2e-3", "3e-3"});
  vary(one, "data.train", {"/a", "[/b, /c]", "/d"});
  vary(one, "schedule.steps", {"1k", "20", "30"});
  one.mutable_spec()->mutable_array()->set_max_running(2);
  const v1::CreateJobArrayResponse response = manager_->create_array(one).value();
  ASSERT_EQ(response.jobs_size(), 3);
  EXPECT_FALSE(response.jobs(0).has_spec());
  const std::string array = response.jobs(0).name();
  for (int i = 0; i < 3; ++i) {
    const v1::Job task = get(response.jobs(i).name());
    EXPECT_EQ(task.array(), array);
    EXPECT_EQ(task.array_index(), static_cast<uint32_t>(i));
    EXPECT_EQ(task.spec().name(), "small-" + std::to_string(i));
    EXPECT_EQ(task.spec().optimizer().learning_rate(), 1e-3 * (i + 1));
    EXPECT_EQ(task.spec().data().train_size(), i == 1 ? 2 : 1);
    EXPECT_EQ(task.spec().array().parameters_size(), 0);
  }
  EXPECT_EQ(get(array).spec().schedule().steps(), 1000u);
  run();
  EXPECT_EQ(state(response.jobs(0).name()), "RUNNING");
  EXPECT_EQ(state(response.jobs(1).name()), "RUNNING");
  EXPECT_EQ(get(response.jobs(2).name()).waiting().reason(), v1::Waiting::ARRAY);
  EXPECT_EQ(get(response.jobs(2).name()).waiting().message(), "array.max_running: 2 tasks of its array run");
  open();
  EXPECT_EQ(manager_->create_array(one)->SerializeAsString(), response.SerializeAsString());
  EXPECT_EQ(manager_->list({})->jobs_size(), 3);
  EXPECT_EQ(manager_->events(response.jobs(2).name(), 0, 10)->events.size(), 1u);
}

TEST_F(Array, AllOfItOrNothing) {
  connect();
  v1::CreateJobArrayRequest one = request(3);
  vary(one, "model.heads", {"2", "5", "4"});
  absl::Status status = manager_->create_array(one).status();
  ASSERT_EQ(violations(status).size(), 1u) << status;
  EXPECT_EQ(violations(status)[0].field, "spec.model.heads");
  EXPECT_EQ(violations(status)[0].description.rfind("task 1: ", 0), 0u) << status;
  one = request(2);
  vary(one, "optimizer.learning_rte", {"1", "2"});
  vary(one, "schedule.steps", {"10", "many"});
  status = manager_->create_array(one).status();
  std::vector<std::string> fields;
  for (const Violation& violation : violations(status)) fields.push_back(violation.field);
  EXPECT_EQ(fields,
            (std::vector<std::string>{"spec.array.parameters[0].values[0]", "spec.array.parameters[0].values[1]",
                                      "spec.array.parameters[1].values[1]"}));
  EXPECT_NE(status.ToString().find("did you mean 'learning_rate'"), std::string::npos) << status;
  one = request(10'001);
  one.mutable_spec()->mutable_array()->set_max_running(3);
  EXPECT_EQ(violations(manager_->create_array(one).status())[0].field, "spec.array.size");
  one = request(2);
  vary(one, "schedule.steps", {"1"});
  vary(one, "name", {"a", "b"});
  EXPECT_EQ(violations(manager_->create_array(one).status()).size(), 2u);
  one = request(2);
  vary(one, "resources.devices", {"1", "6"});
  EXPECT_EQ(reason(manager_->create_array(one).status()), "INSUFFICIENT_DEVICES");
  v1::CreateJobRequest single;
  *single.mutable_spec() = request(2).spec();
  EXPECT_EQ(violations(manager_->create(single).status())[0].field, "spec.array");
  EXPECT_EQ(manager_->list({})->jobs_size(), 0);
  EXPECT_TRUE(store_->jobs()->empty());
}

TEST_F(Array, IsTriedOutAsItsFirstTask) {
  connect();
  v1::CreateJobArrayRequest one = request(3);
  one.set_validate_only(true);
  const v1::CreateJobArrayResponse response = manager_->create_array(one).value();
  ASSERT_EQ(response.jobs_size(), 3);
  EXPECT_EQ(response.jobs(0).name(), "");
  EXPECT_EQ(response.jobs(0).spec().name(), "small-0");
  EXPECT_EQ(response.jobs(0).placement_size(), 1);
  EXPECT_EQ(manager_->list({})->jobs_size(), 0);
}

}  // namespace
}  // namespace telar::server::jobs
