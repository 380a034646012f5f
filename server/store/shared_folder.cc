// The folder that all coordinators of one store share.
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/process.h"
#include "server/store/etcd_store.h"

namespace telar::server::store {
namespace {

namespace pb = etcdserverpb;
constexpr std::chrono::seconds kPatience(10);

std::string first_word(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

// The word that the file has behind this: ours, or that of another coordinator that was quicker.
absl::StatusOr<std::string> write_if_absent(const std::string& path, const std::string& word) {
  const std::string part = absl::StrCat(path, ".", word);
  std::ofstream file(part);
  file << word << "\n";
  file.close();
  std::error_code exists, ignored;
  if (file.good()) std::filesystem::create_hard_link(part, path, exists);
  std::filesystem::remove(part, ignored);
  std::string found = first_word(path);
  if (found.empty()) return absl::PermissionDeniedError(absl::StrCat("cannot write ", path));
  return found;
}

// What etcd says; `proposal` from now on, if it says nothing yet.
absl::StatusOr<std::string> agreed(EtcdClient* client, const std::string& key, const std::string& proposal) {
  pb::TxnRequest request;
  pb::Compare* fresh = request.add_compare();
  fresh->set_target(pb::Compare::VERSION);
  fresh->set_key(key);
  fresh->set_version(0);
  pb::PutRequest* put = request.add_success()->mutable_request_put();
  put->set_key(key);
  put->set_value(proposal);
  request.add_failure()->mutable_request_range()->set_key(key);
  auto response = client->txn(request, std::chrono::steady_clock::now() + kPatience);
  if (!response.ok()) return response.status();
  if (response->succeeded()) return proposal;
  const auto& found = response->responses(0).response_range();
  return found.kvs_size() == 0 ? proposal : std::string(found.kvs(0).value());
}

}  // namespace

absl::Status check_shared(EtcdClient* client, const std::string& prefix, const std::string& folder) {
  const std::string path = folder + "/cluster-id";
  const auto other = [&](const std::string& here, const std::string& wanted) {
    return absl::FailedPreconditionError(
        absl::StrCat("--data ", folder, " is not the folder of the other coordinators of ", client->name(), ": ", path,
                     here.empty() ? " is missing" : absl::StrCat(" says ", here), ", the store says ", wanted,
                     "; all of them need the same folder, on storage that they share"));
  };
  std::string here = first_word(path);
  if (here.empty()) {
    pb::RangeRequest look;
    look.set_key(prefix + "cluster");
    const auto found = client->range(look, std::chrono::steady_clock::now() + kPatience);
    if (!found.ok()) return found.status();
    if (found->kvs_size() > 0) return other(here, found->kvs(0).value());
    auto written = write_if_absent(path, uuid4());  // Before etcd knows of it: a start that is cut off can be repeated.
    if (!written.ok()) return written.status();
    here = *std::move(written);
  }
  const auto cluster = agreed(client, prefix + "cluster", here);
  if (!cluster.ok()) return cluster.status();
  return *cluster == here ? absl::OkStatus() : other(here, *cluster);
}

}  // namespace telar::server::store
