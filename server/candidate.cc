#include "server/candidate.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>

#include "absl/strings/str_cat.h"
#include "common/http_server.h"
#include "common/process.h"
#include "server/rpc/standby.h"

namespace telar::server {
namespace {

constexpr std::chrono::milliseconds kAskEvery(200);

}  // namespace

absl::StatusOr<std::unique_ptr<Candidate>> Candidate::open(const Options& options) {
  const auto endpoints = store::etcd_endpoints(options.store);
  if (!endpoints.ok()) return endpoints.status();
  std::unique_ptr<Candidate> candidate(new Candidate(options, *endpoints));
  const store::LeadershipOptions defaults;
  const absl::Status status = store::check_shared(&candidate->client_, defaults.prefix, options.data);
  if (!status.ok()) return status;
  return candidate;
}

absl::StatusOr<std::optional<Places>> Candidate::wait_for_turn(
    const std::function<absl::Status(const Places&)>& on_bound,
    const std::function<std::string(const std::string&)>& advertised) {
  auto standby = rpc::Standby::start(options_.listen, options_.security.tls, [this] {
    const store::Leadership* leadership = asked_;
    return leadership == nullptr ? "" : leadership->leader();
  });
  if (!standby.ok()) return standby.status();
  auto http = HttpServer::start(options_.http);
  if (!http.ok()) return http.status();
  (*http)->handle("/healthz", [] { return HttpResponse{200, "text/plain; charset=utf-8", "standby\n"}; });
  (*http)->handle("/readyz",
                  [] { return answer_of(absl::UnavailableError("standby: another coordinator leads"), ""); });
  const Places places{(*standby)->address(),
                      absl::StrCat(options_.http.substr(0, options_.http.rfind(':')), ":", (*http)->port())};

  store::LeadershipOptions wanted;
  wanted.address = advertised(places.grpc);
  wanted.ttl = std::chrono::duration_cast<std::chrono::seconds>(options_.leadership_ttl);
  wanted.on_lost = [this](const std::string& why) {
    spdlog::error("leads no more: {}", why);
    deposed_ = true;
    kill(getpid(), SIGUSR1);
  };
  leadership_ = std::make_unique<store::Leadership>(&client_, std::move(wanted));
  asked_ = leadership_.get();
  if (absl::Status status = on_bound(places); !status.ok()) return status;
  notify_systemd(absl::StrCat("READY=1\nSTATUS=standby on ", places.grpc));

  for (std::string said; true;) {
    const auto leads = leadership_->campaign();
    if (leads.ok() && *leads) break;
    const std::string now = leads.ok() ? absl::StrCat("standby: the leader is ", leadership_->leader())
                                       : absl::StrCat("standby: ", std::string(leads.status().message()));
    if (now != said) spdlog::info("{}", now);
    said = now;
    notify_systemd("WATCHDOG=1");
    const auto signal = wait_for_signal(kAskEvery);
    if (signal == SIGTERM || signal == SIGINT) return std::nullopt;
  }
  spdlog::info("leads, in term {}", term());
  return places;
}

absl::StatusOr<std::unique_ptr<store::Store>> Candidate::open_store(rpc::Metrics* metrics) {
  return store::open_etcd(&client_, leadership_.get(),
                          {.on_commit = [metrics](double seconds) { metrics->on_commit(seconds); },
                           .on_transaction = [metrics] { metrics->on_transaction(); },
                           .failpoint = {}});
}

}  // namespace telar::server
