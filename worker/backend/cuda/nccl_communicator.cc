#include "worker/backend/cuda/nccl_communicator.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/cuda.h"
#include "worker/backend/cuda/errors.h"

namespace telar::backend::cuda {
namespace {

using absl::Status;

constexpr std::chrono::microseconds kPoll{50};
constexpr std::chrono::seconds kGoodbye{10};  // Peers that do not leave with us by then are left behind.

bool can_reduce(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kI32;
}

ncclDataType_t vendor_type(DType dtype) {
  if (dtype == DType::kF32) return ncclFloat32;
  if (dtype == DType::kF16) return ncclFloat16;
  return dtype == DType::kBF16 ? ncclBfloat16 : ncclInt32;
}

ncclRedOp_t vendor_op(ReduceOp op) { return op == ReduceOp::kSum ? ncclSum : ncclMax; }

Status check_reducible(DType dtype) {
  if (can_reduce(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("x: dtype ", std::string(name_of(dtype)), ", wanted f32, bf16, f16 or i32"));
}

// `whole` must hold `members` times what `part` does.
Status check_whole(const char* name, const View& whole, const View& part, int members) {
  if (whole.dtype != part.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("x and y: dtypes ", std::string(name_of(whole.dtype)), " and ",
                                                   std::string(name_of(part.dtype)), " differ"));
  }
  if (whole.elements() == part.elements() * members) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", whole.elements(), " elements, wanted ", members, " * ", part.elements()));
}

Status check_member(const char* name, int member, int members) {
  if (member >= 0 && member < members) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", member, " is not in [0, ", members, ")"));
}

Status check_peer(int peer, int rank, int members) {
  if (Status status = check_member("peer", peer, members); !status.ok()) return status;
  if (peer != rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("peer: ", peer, " is this rank"));
}

Status validate(const CommunicatorOptions& options) {
  if (options.name.empty()) return absl::InvalidArgumentError("communicator: name is empty");
  const std::string where = absl::StrCat("communicator '", options.name, "': ");
  if (options.size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(where, "size ", options.size, " is less than 1"));
  }
  if (options.rank >= 0 && options.rank < options.size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(where, "rank ", options.rank, " is not in [0, size = ", options.size, ")"));
}

Status nccl_status(ncclResult_t result, ncclComm_t comm) {
  if (result == ncclSuccess) return absl::OkStatus();
  const char* detail = ncclGetLastError(comm);
  const std::string message = absl::StrCat("NCCL: ", ncclGetErrorString(result), ": ", detail == nullptr ? "" : detail);
  if (result == ncclRemoteError || result == ncclSystemError) return absl::UnavailableError(message);
  if (result == ncclInvalidArgument || result == ncclInvalidUsage) return absl::InvalidArgumentError(message);
  return absl::InternalError(message);
}

// NCCL reads its environment once, at its first call.
void prepare_environment() {
  static std::once_flag once;
  std::call_once(once, [] {
    setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
    setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  });
}

Status copy(const In& x, const Out& y, Stream& stream) {
  if (x.bytes() == 0 || x.data == y.data) return absl::OkStatus();
  return to_status(cudaMemcpyAsync(y.data, x.data, x.bytes(), cudaMemcpyDeviceToDevice, handle_of(stream)),
                   "cudaMemcpyAsync");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::create(int device, KeyValueStore& store,
                                                                       const CommunicatorOptions& options) {
  TELAR_RETURN_IF_ERROR(validate(options));
  std::unique_ptr<NcclCommunicator> communicator(new NcclCommunicator(device, options));
  TELAR_RETURN_IF_ERROR(communicator->run("connect", [&] { return communicator->connect(store); }));
  return communicator;
}

NcclCommunicator::~NcclCommunicator() {
  cudaSetDevice(device_);
  if (comm_ != nullptr) {
    if (settle(ncclCommFinalize(comm_), Clock::now() + kGoodbye).ok()) {
      ncclCommDestroy(comm_);
    } else {
      ncclCommAbort(comm_);
    }
  }
  if (barrier_stream_ != nullptr) cudaStreamDestroy(barrier_stream_);
  cudaFree(barrier_token_);
}

void NcclCommunicator::abort() {
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
}

// Runs one call under the latch.
Status NcclCommunicator::run(const char* call, const std::function<Status()>& body) {
  if (!error_.ok()) return error_;
  const Status status = body();
  if (status.ok()) return status;
  error_ = Status(status.code(), absl::StrCat("communicator '", options_.name, "', ", call, ", rank ", options_.rank,
                                              " of ", options_.size, ": ", std::string(status.message())));
  abort();
  return error_;
}

// Our communicators don't block: a call that has to wait says so, and its result comes by asking.
Status NcclCommunicator::settle(ncclResult_t result, Clock::time_point deadline) {
  while (result == ncclInProgress) {
    if (Clock::now() >= deadline) return absl::DeadlineExceededError("NCCL is still waiting for a peer");
    std::this_thread::sleep_for(kPoll);
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    result = asked == ncclSuccess ? state : asked;
  }
  return nccl_status(result, comm_);
}

absl::StatusOr<ncclUniqueId> NcclCommunicator::meet(KeyValueStore& store) {
  const std::string key = absl::StrCat("communicator/", options_.name, "/nccl");
  ncclUniqueId id{};
  if (options_.rank == 0) {
    TELAR_RETURN_IF_ERROR(nccl_status(ncclGetUniqueId(&id), nullptr));
    TELAR_RETURN_IF_ERROR(store.put(key, absl::BytesToHexString(std::string(id.internal, sizeof(id.internal)))));
    return id;
  }
  const auto found = store.get(std::span(&key, 1), options_.connect_timeout);
  if (!found.ok()) return found.status();
  const std::string& digits = found->front();
  if (digits.size() != 2 * sizeof(id.internal) || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return absl::UnavailableError(absl::StrCat("key '", key, "' holds what is no NCCL id"));
  }
  std::memcpy(id.internal, absl::HexStringToBytes(digits).data(), sizeof(id.internal));
  return id;
}

Status NcclCommunicator::connect(KeyValueStore& store) {
  TELAR_RETURN_IF_ERROR(to_status(cudaSetDevice(device_), absl::StrCat("cudaSetDevice(", device_, ")")));
  if (options_.size == 1) return absl::OkStatus();
  prepare_environment();
  const Clock::time_point deadline = Clock::now() + options_.connect_timeout;
  const absl::StatusOr<ncclUniqueId> id = meet(store);
  if (!id.ok()) return id.status();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  TELAR_RETURN_IF_ERROR(settle(ncclCommInitRankConfig(&comm_, options_.size, *id, options_.rank, &config), deadline));
  TELAR_RETURN_IF_ERROR(
      to_status(cudaStreamCreateWithFlags(&barrier_stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
  void* token = nullptr;
  TELAR_RETURN_IF_ERROR(to_status(cudaMalloc(&token, sizeof(int32_t)), "cudaMalloc"));
  barrier_token_ = static_cast<int32_t*>(token);
  return to_status(cudaMemsetAsync(token, 0, sizeof(int32_t), barrier_stream_), "cudaMemset");
}

Status NcclCommunicator::all_reduce(Stream& stream, ReduceOp op, InOut x) {
  return run("all_reduce", [&] {
    const Status status = check_reducible(x.dtype);
    if (!status.ok() || comm_ == nullptr || x.elements() == 0) return status;
    return finish(ncclAllReduce(x.data, x.data, static_cast<size_t>(x.elements()), vendor_type(x.dtype), vendor_op(op),
                                comm_, handle_of(stream)));
  });
}

Status NcclCommunicator::all_gather(Stream& stream, In x, Out y) {
  return run("all_gather", [&] {
    TELAR_RETURN_IF_ERROR(check_whole("y", y, x, size()));
    if (comm_ == nullptr) return copy(x, y, stream);
    if (x.bytes() == 0) return absl::OkStatus();
    return finish(ncclAllGather(x.data, y.data, x.bytes(), ncclUint8, comm_, handle_of(stream)));
  });
}

Status NcclCommunicator::reduce_scatter(Stream& stream, ReduceOp op, In x, Out y) {
  return run("reduce_scatter", [&] {
    TELAR_RETURN_IF_ERROR(check_reducible(x.dtype));
    TELAR_RETURN_IF_ERROR(check_whole("x", x, y, size()));
    if (comm_ == nullptr) return copy(x, y, stream);
    if (y.elements() == 0) return absl::OkStatus();
    return finish(ncclReduceScatter(x.data, y.data, static_cast<size_t>(y.elements()), vendor_type(x.dtype),
                                    vendor_op(op), comm_, handle_of(stream)));
  });
}

Status NcclCommunicator::broadcast(Stream& stream, int root, InOut x) {
  return run("broadcast", [&] {
    const Status status = check_member("root", root, size());
    if (!status.ok() || comm_ == nullptr || x.bytes() == 0) return status;
    return finish(ncclBroadcast(x.data, x.data, x.bytes(), ncclUint8, root, comm_, handle_of(stream)));
  });
}

Status NcclCommunicator::send(Stream& stream, int peer, In x) {
  return run("send", [&] {
    TELAR_RETURN_IF_ERROR(check_peer(peer, rank(), size()));
    if (x.bytes() == 0) return absl::OkStatus();
    return finish(ncclSend(x.data, x.bytes(), ncclUint8, peer, comm_, handle_of(stream)));
  });
}

Status NcclCommunicator::recv(Stream& stream, int peer, Out y) {
  return run("recv", [&] {
    TELAR_RETURN_IF_ERROR(check_peer(peer, rank(), size()));
    if (y.bytes() == 0) return absl::OkStatus();
    return finish(ncclRecv(y.data, y.bytes(), ncclUint8, peer, comm_, handle_of(stream)));
  });
}

Status NcclCommunicator::barrier() {
  return run("barrier", [&] {
    if (comm_ == nullptr) return absl::OkStatus();
    const Clock::time_point deadline = Clock::now() + options_.call_timeout;
    TELAR_RETURN_IF_ERROR(to_status(cudaSetDevice(device_), "cudaSetDevice"));
    TELAR_RETURN_IF_ERROR(
        settle(ncclAllReduce(barrier_token_, barrier_token_, 1, ncclInt32, ncclSum, comm_, barrier_stream_), deadline));
    return wait_for_barrier(deadline);
  });
}

Status NcclCommunicator::wait_for_barrier(Clock::time_point deadline) {
  while (true) {
    const cudaError_t done = cudaStreamQuery(barrier_stream_);
    if (done != cudaErrorNotReady) return to_status(done, "cudaStreamQuery");
    ncclResult_t state = ncclSuccess;
    TELAR_RETURN_IF_ERROR(nccl_status(ncclCommGetAsyncError(comm_, &state), comm_));
    TELAR_RETURN_IF_ERROR(nccl_status(state, comm_));
    if (Clock::now() >= deadline) return absl::DeadlineExceededError("a peer is not there");
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace telar::backend::cuda
