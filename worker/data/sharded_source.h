// Megatron's files as one source of tokens, whoever wrote them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/megatron_shard.h"
#include "worker/data/token_source.h"

namespace telar::data {

// The shards' tokens and documents one behind the other. Where they end is read from the mapped indexes, which so need
// no memory. `shards` is not empty. The source must outlive what its documents() gave.
std::unique_ptr<TokenSource> make_sharded_source(std::vector<MegatronShard> shards, int64_t vocab);

// Paths and globs as in token_source.h; they name the .bin files. Errors of MegatronShard::open besides.
absl::StatusOr<std::unique_ptr<TokenSource>> open_megatron(const std::vector<std::string>& paths, int64_t vocab);

}  // namespace telar::data
