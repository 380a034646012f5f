// Changing how a job is scheduled, and the etags that say what it was like when someone looked.
#include "tests/server/jobs/manager_fixture.h"

namespace telar::server::jobs {
namespace {

using tests::small_spec;

class Update : public tests::ManagerTest {
 protected:
  v1::UpdateJobRequest request(const std::string& name, const std::vector<std::string>& fields) {
    v1::UpdateJobRequest one;
    one.mutable_job()->set_name(name);
    for (const std::string& field : fields) one.mutable_update_mask()->add_paths("spec.scheduling." + field);
    return one;
  }
};

TEST_F(Update, ChangesWhatTheMaskNamesAndNothingElse) {
  connect();
  manager_->set_queues({{.name = "default"}, {.name = "other"}});
  submit(small_spec(4));
  run();
  const std::string first = submit(small_spec(4)), second = submit(small_spec(4));
  v1::UpdateJobRequest change = request(second, {"priority", "time_limit_seconds"});
  change.mutable_job()->mutable_spec()->mutable_scheduling()->set_priority(7);
  change.mutable_job()->mutable_spec()->mutable_scheduling()->set_time_limit_seconds(60);
  change.mutable_job()->mutable_spec()->mutable_scheduling()->set_queue("other");
  change.set_request_id("u1");
  const v1::Job changed = manager_->update(change).value();
  EXPECT_EQ(changed.spec().scheduling().priority(), 7);
  EXPECT_EQ(changed.spec().scheduling().time_limit_seconds(), 60u);
  EXPECT_EQ(changed.spec().scheduling().queue(), "default");
  EXPECT_TRUE(changed.spec().scheduling().preemptible());
  open();
  EXPECT_EQ(manager_->update(change)->SerializeAsString(), changed.SerializeAsString());
  connect();
  run();
  a_.finish_all();
  b_.finish_all();
  run();
  EXPECT_EQ(state(second), "RUNNING") << "before " << first;
  change = request(second, {"preemptible", "queue"});
  change.mutable_job()->mutable_spec()->mutable_scheduling()->set_preemptible(false);
  manager_->set_queues({{.name = "default"}, {.name = "other"}});
  change.mutable_job()->mutable_spec()->mutable_scheduling()->set_queue("other");
  EXPECT_FALSE(manager_->update(change)->spec().scheduling().preemptible());
  EXPECT_EQ(manager_->queues()[1].held_devices(), 4u);
  EXPECT_EQ(state(second), "RUNNING");
}

TEST_F(Update, ALimitThatIsUsedUpAlreadyEndsTheJob) {
  const std::string name = running(small_spec(2));
  pass(std::chrono::seconds(20));
  ASSERT_TRUE(manager_->set_scheduling("a", v1::Node::DRAINING, "", "").ok());
  ASSERT_TRUE(manager_->set_scheduling("b", v1::Node::DRAINING, "", "").ok());
  run();
  ASSERT_EQ(state(name), "QUEUED");
  v1::UpdateJobRequest change = request(name, {"time_limit_seconds"});
  change.mutable_job()->mutable_spec()->mutable_scheduling()->set_time_limit_seconds(10);
  const v1::Job changed = manager_->update(change).value();
  EXPECT_EQ(changed.state(), v1::Job::FAILED);
  EXPECT_EQ(changed.failure_class(), v1::TIME_LIMIT);
}

TEST_F(Update, RefusesWithEveryReason) {
  connect();
  const std::string name = submit(small_spec(2));
  run();
  v1::UpdateJobRequest change = request(name, {"priority", "queue"});
  change.mutable_update_mask()->add_paths("spec.model.layers");
  change.mutable_job()->mutable_spec()->mutable_scheduling()->set_priority(5000);
  change.mutable_job()->mutable_spec()->mutable_scheduling()->set_queue("nowhere");
  const absl::Status status = manager_->update(change).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(violations(status).size(), 3u) << status;
  EXPECT_EQ(manager_->update(request(name, {})).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manager_->update(request("projects/default/jobs/x", {"priority"})).status().code(),
            absl::StatusCode::kNotFound);
  manager_->set_queues({{.name = "default"}, {.name = "tiny", .quota_devices = 1}});
  change = request(name, {"queue"});
  change.mutable_job()->mutable_spec()->mutable_scheduling()->set_queue("tiny");
  EXPECT_EQ(reason(manager_->update(change).status()), "QUOTA_EXCEEDED");
  ASSERT_TRUE(cancel(name).ok());
  run();
  EXPECT_EQ(reason(manager_->update(request(name, {"priority"})).status()), "JOB_TERMINAL");
}

TEST_F(Update, AnEtagIsGoodUntilTheJobChanges) {
  connect();
  const std::string name = submit(small_spec(2));
  const std::string stale = get(name).etag();
  run();
  v1::UpdateJobRequest change = request(name, {"priority"});
  change.set_etag(stale);
  absl::Status status = manager_->update(change).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(reason(status), "ETAG_MISMATCH");
  v1::CancelJobRequest end;
  end.set_name(name);
  end.set_etag(stale);
  EXPECT_EQ(manager_->cancel(end).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(state(name), "RUNNING");
  change.set_etag(get(name).etag());
  const v1::Job changed = manager_->update(change).value();
  end.set_etag(changed.etag());
  EXPECT_TRUE(manager_->cancel(end).ok());
}

}  // namespace
}  // namespace telar::server::jobs
