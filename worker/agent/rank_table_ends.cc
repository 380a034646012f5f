// What is left of ranks that are over, and the receipts that say so.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "worker/agent/rank_table.h"

namespace telar::agent {
namespace {
constexpr std::chrono::milliseconds kLookAgain{1'000};  // At what will not go.
}

EndFacts RankTable::facts_of(const Rank& rank) const {
  EndFacts facts;
  facts.device = rank.plan.device();
  facts.family = rank.family;
  if (!config_.device_files.empty()) {
    facts.device_file = absl::StrCat(config_.device_files, rank.plan.device().index());
  }
  facts.state = state_->path();
  facts.spawner = spawner_->pid();
  facts.probe = probe_->pid();
  for (const auto& [key, other] : ranks_) {
    if (other.running() && other.family) facts.others.push_back(*other.family);
  }
  facts.used_before = rank.directory.read_memory_before();
  if (const auto use = probe_->use(rank.plan.device())) facts.used_now = use->bytes;
  return facts;
}

void RankTable::watch_end(Rank& rank) {
  const Steady now = clock_->now();
  if (!rank.over_since) rank.over_since = now;
  if (rank.told && rank.looked && now - *rank.looked < kLookAgain) return;
  rank.looked = now;
  const EndFacts facts = facts_of(rank);
  const bool late = now - *rank.over_since >= config_.residue_after ||
                    (rank.killing_since && now - *rank.killing_since >= config_.residue_after);
  // What the device had in use while the rank lived says nothing; the next round of the probe does.
  const auto use = probe_->use(rank.plan.device());
  if (!late && facts.used_before && use && use->time <= *rank.over_since) return;
  std::vector<v1::Residue> left = find_residues(facts);
  const bool before = rank.told && !rank.residues.empty();
  if (left.empty()) {
    if (before) spdlog::info("{}: nothing of it is left any more", to_string(key_of(rank.plan)));
    if (rank.family && !rank.family->cgroup.empty()) rmdir(rank.family->cgroup.c_str());
    rank.residues.clear();
    rank.told = true;
  } else if (late) {
    for (const v1::Residue& one : left) {
      if (!before) spdlog::error("{}: left behind: {}", to_string(key_of(rank.plan)), one.message());
    }
    rank.residues = std::move(left);
    rank.told = true;
  }
}

std::vector<v1::Receipt> RankTable::receipts() const {
  std::vector<v1::Receipt> all;
  for (auto entry = ranks_.begin(); entry != ranks_.end();) {
    v1::Receipt receipt;
    receipt.set_job(entry->first.job);
    receipt.set_epoch(entry->first.epoch);
    bool told = true;
    for (; entry != ranks_.end() && entry->first.job == receipt.job() && entry->first.epoch == receipt.epoch();
         ++entry) {
      const Rank& rank = entry->second;
      told = told && !rank.running() && rank.told;
      for (const v1::Residue& residue : rank.residues) *receipt.add_residues() = residue;
    }
    receipt.set_clean(receipt.residues().empty());
    if (told) all.push_back(std::move(receipt));
  }
  return all;
}

}  // namespace telar::agent
