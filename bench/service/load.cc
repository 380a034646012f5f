#include "bench/service/load.h"

#include <grpcpp/create_channel.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/process.h"

namespace telar::bench {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

constexpr int kConnections = 8;
constexpr int kMostUnderWay = 64;  // While filling.

v1::CreateJobRequest small_job() {
  v1::CreateJobRequest request;
  v1::JobSpec& spec = *request.mutable_spec();
  spec.set_name("bench");
  spec.mutable_model()->set_architecture(v1::GPT2);
  spec.mutable_model()->set_layers(2);
  spec.mutable_model()->set_hidden(32);
  spec.mutable_model()->set_heads(2);
  spec.mutable_data()->add_train("/data/text.txt");
  spec.mutable_batch()->set_global(12);
  spec.mutable_batch()->set_sequence_length(16);
  spec.mutable_schedule()->set_steps(1'000'000);
  spec.mutable_resources()->set_devices(1);
  spec.mutable_resources()->set_kind(v1::ResourceSpec::CPU);
  return request;
}

}  // namespace

struct Load::Call {
  grpc::ClientContext context;
  v1::CreateJobRequest create;
  v1::ListJobsRequest list;
  v1::ListJobsResponse listed;
  v1::GetJobRequest get;
  v1::Job job;
};

Load::Load(const std::string& coordinator, Latencies* latencies) : latencies_(latencies), run_(uuid4()) {
  for (int i = 0; i < kConnections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    stubs_.push_back(
        v1::Jobs::NewStub(grpc::CreateCustomChannel(coordinator, grpc::InsecureChannelCredentials(), arguments)));
  }
}

Load::~Load() { wait_until_at_most(0); }

void Load::begun() {
  std::lock_guard<std::mutex> hold(mutex_);
  ++under_way_;
}

void Load::ended() {
  std::lock_guard<std::mutex> hold(mutex_);
  --under_way_;
  changed_.notify_all();
}

void Load::wait_until_at_most(int under_way) {
  std::unique_lock<std::mutex> hold(mutex_);
  changed_.wait(hold, [&] { return under_way_ <= under_way; });
}

void Load::submit(SteadyClock::time_point due) {
  begun();
  auto call = std::make_shared<Call>();
  call->create = small_job();
  call->create.set_request_id(absl::StrCat(run_, "-", ++requests_));
  stubs_[next_stub_++ % stubs_.size()]->async()->CreateJob(&call->context, &call->create, &call->job,
                                                           [this, call, due](const grpc::Status& status) {
                                                             latencies_->add("submit", due, status.ok());
                                                             if (status.ok()) {
                                                               std::lock_guard<std::mutex> hold(mutex_);
                                                               acknowledged_.push_back(call->job.name());
                                                             }
                                                             ended();
                                                           });
}

void Load::list(SteadyClock::time_point due, int page_size) {
  begun();
  auto call = std::make_shared<Call>();
  call->list.set_page_size(page_size);
  stubs_[next_stub_++ % stubs_.size()]->async()->ListJobs(
      &call->context, &call->list, &call->listed, [this, call, due, page_size](const grpc::Status& status) {
        latencies_->add(absl::StrCat("list of ", page_size), due, status.ok() && call->listed.jobs_size() == page_size);
        ended();
      });
}

void Load::get(SteadyClock::time_point due) {
  auto call = std::make_shared<Call>();
  {
    std::lock_guard<std::mutex> hold(mutex_);
    if (acknowledged_.empty()) return;
    call->get.set_name(acknowledged_[next_stub_ * 7919 % acknowledged_.size()]);
  }
  begun();
  stubs_[next_stub_++ % stubs_.size()]->async()->GetJob(&call->context, &call->get, &call->job,
                                                        [this, call, due](const grpc::Status& status) {
                                                          latencies_->add("get", due, status.ok());
                                                          ended();
                                                        });
}

void Load::fill(int jobs) {
  for (int i = 0; i < jobs; ++i) {
    wait_until_at_most(kMostUnderWay - 1);
    submit(SteadyClock::now());
  }
  wait_until_at_most(0);
}

void Load::run(const Rates& rates, std::chrono::seconds time) {
  const auto start = SteadyClock::now();
  const auto at = [&](double rate, uint64_t index) {
    return start + std::chrono::duration_cast<SteadyClock::duration>(
                       std::chrono::duration<double>(static_cast<double>(index) / rate));
  };
  uint64_t submits = 0, lists = 0, gets = 0;
  for (auto now = start; now < start + time; now = SteadyClock::now()) {
    for (; at(rates.submit, submits) <= now; ++submits) submit(at(rates.submit, submits));
    for (; at(rates.list, lists) <= now; ++lists) list(at(rates.list, lists), lists % 4 == 3 ? 500 : 50);
    for (; at(rates.get, gets) <= now; ++gets) get(at(rates.get, gets));
    std::this_thread::sleep_until(now + milliseconds(1));
  }
  wait_until_at_most(0);
}

std::vector<std::string> Load::acknowledged() const {
  std::lock_guard<std::mutex> hold(mutex_);
  return acknowledged_;
}

}  // namespace telar::bench
