// Files that operators write: tokens, revoked nodes, queues, a cluster.
#include "absl/strings/str_cat.h"
#include "client/spec/reader.h"
#include "server/auth/revoked.h"
#include "server/auth/tokens.h"
#include "server/jobs/admission.h"
#include "server/jobs/queues_file.h"
#include "tests/fuzz/input.h"
#include "worker/forecast/rates.h"

namespace {

using namespace telar;  // NOLINT: what is fuzzed.
using fuzz::require;

constexpr const char* kToken = "a token of nobody";

void read_tokens(const std::string& text) {
  const auto tokens = server::auth::Tokens::parse(text);
  if (!tokens.ok()) return;
  const RealClock clock;
  require(!tokens->find(kToken, clock.wall()).ok(), "nobody has this token");
  require(server::auth::Tokens::parse(text + "\n# the end\n").ok(), "a comment changes nothing");
}

void read_revoked(const std::string& text) {
  const auto revoked = server::auth::Revoked::parse(text);
  if (revoked.ok()) require(!revoked->contains("not a label!", "no fingerprint"), "what is no name is not revoked");
}

void read_queues(const std::string& text) {
  const auto queues = server::jobs::parse_queues("fuzz.yaml", text);
  if (!queues.ok()) return;
  require(!queues->empty(), "there is a queue");
  for (const server::jobs::QueueConfig& queue : *queues) {
    require(server::jobs::label(queue.name), "a queue's name is a label");
    require(queue.weight > 0 && queue.weight <= 1e6, "a weight is a share");
  }
}

void read_cluster(const std::string& text, client::Format format) {
  v1::ClusterShape cluster;
  if (!client::read_spec("fuzz", text, format, cluster).problems.empty()) return;
  if (!forecast::complete_cluster(cluster).ok()) return;
  const std::string complete = cluster.SerializeAsString();
  require(forecast::complete_cluster(cluster).ok() && cluster.SerializeAsString() == complete,
          "a complete cluster stays as it is");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t mode = input.byte();
  const std::string text(input.rest());
  switch (mode % 4) {
    case 0:
      read_tokens(text);
      break;
    case 1:
      read_revoked(text);
      break;
    case 2:
      read_queues(text);
      break;
    default:
      read_cluster(text, static_cast<client::Format>(mode / 4 % 3));
  }
  return 0;
}
