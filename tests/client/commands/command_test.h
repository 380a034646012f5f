// A command run against the fake coordinator, its output caught.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "client/commands/commands.h"
#include "common/channel.h"
#include "tests/client/fake_coordinator.h"

namespace telar::client {

class CommandTest : public testing::Test {
 protected:
  CommandTest() {
    context.options.coordinator = coordinator.address();
    context.options.timeout = Milliseconds(5000);
    context.jobs = jobs_stub();
    context.nodes = v1::Nodes::NewStub(dial(coordinator.address()));
  }

  std::unique_ptr<v1::Jobs::StubInterface> jobs_stub() const { return v1::Jobs::NewStub(dial(coordinator.address())); }

  // Adds a job and makes it the watched one.
  v1::Job& add_job(const std::string& id, v1::Job::State state, const std::string& label = "demo") {
    v1::Job& job = coordinator.service.jobs["projects/default/jobs/" + id];
    job.set_name("projects/default/jobs/" + id);
    job.mutable_spec()->set_name(label);
    job.set_state(state);
    return job;
  }

  // One more event of the watched job: it went to `state`.
  void add_event(const v1::Job& job, v1::Job::State from, v1::Job::State to, const std::string& why = "") {
    v1::WatchJobResponse response;
    response.mutable_event()->set_sequence(coordinator.service.events.size() + 1);
    response.mutable_event()->mutable_time()->set_seconds(1'800'000'000 + response.event().sequence());
    response.mutable_event()->mutable_state_change()->set_from(from);
    response.mutable_event()->mutable_state_change()->set_to(to);
    response.mutable_event()->mutable_state_change()->set_reason(why);
    *response.mutable_job() = job;
    response.mutable_job()->set_state(to);
    coordinator.service.events.push_back(response);
  }

  FakeCoordinator coordinator;
  std::istringstream in;
  std::ostringstream out, err;
  RealClock clock;
  Interrupt interrupt;
  Context context{{}, {in, out, err}, clock, interrupt, nullptr};
};

}  // namespace telar::client
