#include "server/jobs/receipts.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cluster/times.h"
#include "server/jobs/conditions.h"

namespace telar::server::jobs {
namespace {

using v1::RankPlacement;

bool over_on(const v1::Job& job, const std::string& node) {
  return std::all_of(job.placement().begin(), job.placement().end(), [&](const RankPlacement& place) {
    return place.node() != node || place.state() == RankPlacement::EXITED;
  });
}

bool names_epoch(const v1::HeartbeatRequest& request, const v1::Job& job) {
  return std::any_of(request.ranks().begin(), request.ranks().end(), [&](const v1::RankStatus& rank) {
    return rank.job() == job.name() && rank.epoch() == job.epoch();
  });
}

void tell_residues(Draft& draft, const NodeReceipt& receipt) {
  std::vector<std::string> messages;
  for (const v1::Residue& residue : receipt.residues()) messages.push_back(residue.message());
  if (messages.empty()) return;
  set_condition(draft, "RESIDUE", absl::StrCat("node ", receipt.node(), ": "), absl::StrJoin(messages, "; "));
}

}  // namespace

bool has_receipt(const JobRecord& record, const std::string& node) {
  return std::any_of(record.receipts().begin(), record.receipts().end(),
                     [&](const NodeReceipt& receipt) { return receipt.node() == node; });
}

void observe_receipt(Draft& draft, const v1::HeartbeatRequest& request) {
  if (has_receipt(draft.record(), request.node()) || !over_on(draft.job(), request.node())) return;
  const auto told = std::find_if(request.receipts().begin(), request.receipts().end(), [&](const v1::Receipt& one) {
    return one.job() == draft.job().name() && one.epoch() == draft.job().epoch();
  });
  if (told == request.receipts().end() && names_epoch(request, draft.job())) return;
  NodeReceipt* receipt = draft.record().add_receipts();
  receipt->set_node(request.node());
  receipt->set_clean(told == request.receipts().end() || told->clean());
  if (told != request.receipts().end()) *receipt->mutable_residues() = told->residues();
  tell_residues(draft, *receipt);
  draft.touch();
}

void waive_receipt(Draft& draft, const std::string& node) {
  if (has_receipt(draft.record(), node)) return;
  NodeReceipt* receipt = draft.record().add_receipts();
  receipt->set_node(node);
  receipt->set_waived(true);
  draft.touch();
}

std::vector<std::string> missing_receipts(const JobRecord& record) {
  std::set<std::string> missing;
  for (const RankPlacement& place : record.job().placement()) {
    if (place.state() != RankPlacement::LOST && !has_receipt(record, place.node())) missing.insert(place.node());
  }
  return {missing.begin(), missing.end()};
}

bool receipts_overdue(const JobRecord& record, const Timeline& time, std::chrono::milliseconds longest) {
  if (!record.has_gone_time()) return false;
  return time.now() >= std::max(cluster::to_wall(record.gone_time()), time.opened()) + longest;
}

void give_up_receipts(Draft& draft) {
  for (const std::string& node : missing_receipts(draft.record())) {
    NodeReceipt* receipt = draft.record().add_receipts();
    receipt->set_node(node);
    receipt->add_residues()->set_message("it never said that all of it is gone there");
    tell_residues(draft, *receipt);
    draft.touch();
  }
}

}  // namespace telar::server::jobs
