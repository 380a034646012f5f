#include "client/commands/resolve_job.h"

#include "client/output/format.h"
#include "tests/client/commands/command_test.h"

namespace telar::client {
namespace {

class ResolveJobTest : public CommandTest {
 protected:
  std::string id(const std::string& text) {
    const auto job = resolve_job(context, text);
    return job.ok() ? id_of(job->name()) : std::string(job.status().message());
  }
};

TEST_F(ResolveJobTest, ByIdFullNameAndLabel) {
  add_job("a-1", v1::Job::RUNNING, "gpt");
  add_job("b-1", v1::Job::RUNNING, "llama");
  EXPECT_EQ(id("a-1"), "a-1");
  EXPECT_EQ(id("projects/default/jobs/b-1"), "b-1");
  EXPECT_EQ(id("llama"), "b-1");
}

TEST_F(ResolveJobTest, ALabelMeansTheOneLiveJob) {
  for (int i = 1; i <= 4; ++i) add_job("gpt-" + std::to_string(i), v1::Job::SUCCEEDED, "gpt");
  add_job("gpt-5", v1::Job::QUEUED, "gpt");
  EXPECT_EQ(id("gpt"), "gpt-5");
  EXPECT_EQ(coordinator.service.lists.size(), 3u) << "all pages are read";
}

TEST_F(ResolveJobTest, SeveralCandidatesAreListed) {
  add_job("gpt-1", v1::Job::RUNNING, "gpt");
  add_job("gpt-2", v1::Job::QUEUED, "gpt");
  add_job("gpt-3", v1::Job::FAILED, "gpt");
  const auto job = resolve_job(context, "gpt");
  EXPECT_TRUE(absl::IsInvalidArgument(job.status()));
  EXPECT_EQ(id("gpt"), "'gpt' names 2 jobs, say which by id: gpt-1 (RUNNING), gpt-2 (QUEUED)");
}

TEST_F(ResolveJobTest, SeveralEndedJobsAreListedToo) {
  for (int i = 1; i <= 7; ++i) add_job("gpt-" + std::to_string(i), v1::Job::FAILED, "gpt");
  EXPECT_TRUE(id("gpt").ends_with("gpt-5 (FAILED) and 2 more")) << id("gpt");
}

TEST_F(ResolveJobTest, AnIdIsFoundInEveryProjectAndFirstInOnesOwn) {
  v1::Job& job = coordinator.service.jobs["projects/lab/jobs/a-1"];
  job.set_name("projects/lab/jobs/a-1");
  job.set_state(v1::Job::RUNNING);
  job.mutable_spec()->set_name("gpt");
  EXPECT_EQ(resolve_job(context, "a-1")->name(), "projects/lab/jobs/a-1");
  const size_t lists = coordinator.service.lists.size();
  context.options.project = "lab";
  EXPECT_EQ(resolve_job(context, "a-1")->name(), "projects/lab/jobs/a-1");
  EXPECT_EQ(coordinator.service.lists.size(), lists);
  EXPECT_TRUE(resolve_job(context, "gpt").ok());
  EXPECT_EQ(coordinator.service.lists.back().parent(), "projects/lab");
}

TEST_F(ResolveJobTest, NoneIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(resolve_job(context, "x").status()));
  EXPECT_TRUE(absl::IsNotFound(resolve_job(context, "projects/other/jobs/x").status()));
}

}  // namespace
}  // namespace telar::client
