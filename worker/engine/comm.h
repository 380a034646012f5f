// What a collective op exchanges: for those who compare the ranks' programs or look at times. Running it needs none of
// this.
#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "worker/backend/collectives.h"
#include "worker/engine/buffer.h"

namespace telar::engine {

using GroupId = uint32_t;  // A communicator, by its place in the executor's list.

enum class CommKind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kSend, kRecv, kExchange };
std::string_view name_of(CommKind kind);  // "all_reduce", ...

struct CommCall {
  CommKind kind = CommKind::kAllReduce;
  GroupId group = 0;
  int peer = -1;    // kSend, kRecv: who, kExchange: whom it sends to, kBroadcast: the root; in the group.
  int source = -1;  // kExchange: whom it receives from.
  backend::ReduceOp reduce = backend::ReduceOp::kSum;  // kAllReduce, kReduceScatter.
  uint64_t elements = 0;                               // Of its first tensor, the same on all who take part.
  DType dtype = DType::kU8;
  uint64_t bytes() const { return elements * backend::size_of(dtype); }
  bool sends() const { return kind == CommKind::kSend || kind == CommKind::kExchange; }
  bool receives() const { return kind == CommKind::kRecv || kind == CommKind::kExchange; }
  bool point_to_point() const { return sends() || receives(); }
  // Whom a call that receives gets it from.
  int receives_from() const { return kind == CommKind::kExchange ? source : peer; }
  bool operator==(const CommCall&) const = default;
  std::string to_string() const;  // "all_reduce(sum) of 1024 f32", "exchange to 1 from 2 of 64 bf16"
};

// Which of the calls a method is.
template <typename Method>
CommKind comm_kind(Method method) {
  using backend::Communicator;
  const auto is = [method](auto candidate) {
    if constexpr (std::is_same_v<Method, decltype(candidate)>) return method == candidate;
    return false;
  };
  if (is(&Communicator::all_reduce)) return CommKind::kAllReduce;
  if (is(&Communicator::all_gather)) return CommKind::kAllGather;
  if (is(&Communicator::reduce_scatter)) return CommKind::kReduceScatter;
  if (is(&Communicator::broadcast)) return CommKind::kBroadcast;
  if (is(&Communicator::send)) return CommKind::kSend;
  if (is(&Communicator::exchange)) return CommKind::kExchange;
  assert(is(&Communicator::recv));  // Or this list lacks a method.
  return CommKind::kRecv;
}

}  // namespace telar::engine
