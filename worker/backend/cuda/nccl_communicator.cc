#include "worker/backend/cuda/nccl_communicator.h"

#include <algorithm>
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

ncclDataType_t nccl_type(DType dtype) {
  if (dtype == DType::kF32) return ncclFloat32;
  if (dtype == DType::kF16) return ncclFloat16;
  return dtype == DType::kBF16 ? ncclBfloat16 : ncclInt32;
}

ncclRedOp_t vendor_op(ReduceOp op) { return op == ReduceOp::kSum ? ncclSum : ncclMax; }

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

// Of a query: a runtime that answers "not ready" also keeps it as the thread's last error, which others check.
bool is_not_ready(cudaError_t answer) {
  if (answer != cudaErrorNotReady) return false;
  cudaGetLastError();
  return true;
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
  if (options.size > 1) NcclWatchdog::instance().add(device, *communicator);
  TELAR_RETURN_IF_ERROR(communicator->run("connect", [&] { return communicator->connect(store); }));
  return communicator;
}

NcclCommunicator::~NcclCommunicator() {
  if (size() > 1) NcclWatchdog::instance().remove(device_, *this);  // From here on nobody else calls.
  cudaSetDevice(device_);
  if (comm_ != nullptr) {
    if (invoke(Clock::now() + kGoodbye, [&] { return ncclCommFinalize(comm_); }).ok()) {
      ncclCommDestroy(comm_);
    } else {
      ncclCommAbort(comm_);
    }
  }
  if (barrier_stream_ != nullptr) cudaStreamDestroy(barrier_stream_);
  cudaFree(barrier_token_);
  for (const Issued& issued : issued_) cudaEventDestroy(issued.done);
  for (cudaEvent_t event : spare_events_) cudaEventDestroy(event);
}

void NcclCommunicator::abort() {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  cudaSetDevice(device_);
  if (comm != nullptr) ncclCommAbort(comm);
}

std::string NcclCommunicator::place(const char* call) const {
  return absl::StrCat("communicator '", options_.name, "', ", call, ", rank ", options_.rank, " of ", options_.size);
}

// Runs one call under the latch. An error is the first one of the device's communicators, whoever saw it.
Status NcclCommunicator::run(const char* call, const std::function<Status()>& body) {
  if (!error_.ok()) return error_;
  NcclWatchdog& watchdog = NcclWatchdog::instance();
  const auto earlier = [&] {
    const Status failure = size() > 1 ? watchdog.failure(device_) : absl::OkStatus();
    if (failure.ok()) return failure;
    return Status(failure.code(), absl::StrCat("given up because of ", std::string(failure.message())));
  };
  Status status = earlier();
  if (status.ok()) {
    status = body();
    if (status.ok()) return status;
    if (const Status cause = earlier(); !cause.ok()) status = cause;
  }
  error_ = Status(status.code(), absl::StrCat(place(call), ": ", std::string(status.message())));
  if (size() > 1) watchdog.fail(device_, error_);
  return error_;
}

// Our communicators don't block: a call that has to wait says so, and its result comes by asking.
Status NcclCommunicator::invoke(Clock::time_point deadline, const std::function<ncclResult_t()>& call) {
  {
    const std::lock_guard lock(mutex_);
    const ncclResult_t result = call();
    if (result != ncclInProgress) return nccl_status(result, comm_);
  }
  return settle(deadline);
}

Status NcclCommunicator::settle(Clock::time_point deadline) {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (comm_ == nullptr) return absl::UnavailableError("aborted");
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
      const ncclResult_t result = asked == ncclSuccess ? state : asked;
      if (result != ncclInProgress) return nccl_status(result, comm_);
    }
    if (Clock::now() >= deadline) return absl::DeadlineExceededError("NCCL is still waiting for a peer");
    std::this_thread::sleep_for(kPoll);
  }
}

Status NcclCommunicator::enqueue(const char* call, cudaStream_t stream, const std::function<ncclResult_t()>& work) {
  TELAR_RETURN_IF_ERROR(
      invoke(Clock::now() + options_.call_timeout, [&] { return comm_ == nullptr ? ncclInvalidUsage : work(); }));
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  TELAR_RETURN_IF_ERROR(to_status(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing"));
  const std::lock_guard lock(mutex_);
  ++calls_;
  if (capture != cudaStreamCaptureStatusNone) {
    ++captured_;
    return absl::OkStatus();
  }
  forget_finished();
  cudaEvent_t done = nullptr;
  if (spare_events_.empty()) {
    TELAR_RETURN_IF_ERROR(to_status(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "cudaEventCreate"));
  } else {
    done = spare_events_.back();
    spare_events_.pop_back();
  }
  issued_.push_back({call, calls_, Clock::now(), done});
  return to_status(cudaEventRecord(done, stream), "cudaEventRecord");
}

// With mutex_ held. Calls of a communicator finish in order. An error of the device is found by who waits for it.
void NcclCommunicator::forget_finished() {
  while (!issued_.empty() && !is_not_ready(cudaEventQuery(issued_.front().done))) {
    spare_events_.push_back(issued_.front().done);
    issued_.pop_front();
  }
}

Status NcclCommunicator::look() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return absl::OkStatus();
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  const ncclResult_t result = asked == ncclSuccess ? state : asked;
  forget_finished();
  const char* const call = issued_.empty() ? "under way" : issued_.front().call;
  if (result != ncclSuccess && result != ncclInProgress) {
    const Status status = nccl_status(result, comm_);
    return Status(status.code(), absl::StrCat(place(call), ": ", std::string(status.message())));
  }
  if (issued_.empty() || Clock::now() - issued_.front().at < options_.call_timeout) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(place(call), ": call ", issued_.front().number, " is not finished ",
                                                  options_.call_timeout.count(),
                                                  " ms after it was issued; a peer is missing or hangs"));
}

std::string NcclCommunicator::unfinished() {
  const std::lock_guard lock(mutex_);
  if (!issued_.empty()) return absl::StrCat(place(issued_.front().call), ", call ", issued_.front().number);
  if (captured_ == 0) return "";
  return absl::StrCat(place("calls in graphs"), ", ", captured_, " of them");
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
  TELAR_RETURN_IF_ERROR(
      invoke(deadline, [&] { return ncclCommInitRankConfig(&comm_, options_.size, *id, options_.rank, &config); }));
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
    if (!status.ok() || size() == 1 || x.elements() == 0) return status;
    return enqueue("all_reduce", handle_of(stream), [&] {
      return ncclAllReduce(x.data, x.data, static_cast<size_t>(x.elements()), nccl_type(x.dtype), vendor_op(op), comm_,
                           handle_of(stream));
    });
  });
}

Status NcclCommunicator::all_gather(Stream& stream, In x, Out y) {
  return run("all_gather", [&] {
    TELAR_RETURN_IF_ERROR(check_whole("y", y, x, size()));
    if (size() == 1) return copy(x, y, stream);
    if (x.bytes() == 0) return absl::OkStatus();
    return enqueue("all_gather", handle_of(stream),
                   [&] { return ncclAllGather(x.data, y.data, x.bytes(), ncclUint8, comm_, handle_of(stream)); });
  });
}

Status NcclCommunicator::reduce_scatter(Stream& stream, ReduceOp op, In x, Out y) {
  return run("reduce_scatter", [&] {
    TELAR_RETURN_IF_ERROR(check_reducible(x.dtype));
    TELAR_RETURN_IF_ERROR(check_whole("x", x, y, size()));
    if (size() == 1) return copy(x, y, stream);
    if (y.elements() == 0) return absl::OkStatus();
    return enqueue("reduce_scatter", handle_of(stream), [&] {
      return ncclReduceScatter(x.data, y.data, static_cast<size_t>(y.elements()), nccl_type(x.dtype), vendor_op(op),
                               comm_, handle_of(stream));
    });
  });
}

Status NcclCommunicator::broadcast(Stream& stream, int root, InOut x) {
  return run("broadcast", [&] {
    const Status status = check_root(root, size());
    if (!status.ok() || size() == 1 || x.bytes() == 0) return status;
    return enqueue("broadcast", handle_of(stream),
                   [&] { return ncclBroadcast(x.data, x.data, x.bytes(), ncclUint8, root, comm_, handle_of(stream)); });
  });
}

Status NcclCommunicator::send(Stream& stream, int peer, In x) {
  return run("send", [&] {
    TELAR_RETURN_IF_ERROR(check_peer(peer, rank(), size()));
    if (x.bytes() == 0) return absl::OkStatus();
    return enqueue("send", handle_of(stream),
                   [&] { return ncclSend(x.data, x.bytes(), ncclUint8, peer, comm_, handle_of(stream)); });
  });
}

Status NcclCommunicator::recv(Stream& stream, int peer, Out y) {
  return run("recv", [&] {
    TELAR_RETURN_IF_ERROR(check_peer(peer, rank(), size()));
    if (y.bytes() == 0) return absl::OkStatus();
    return enqueue("recv", handle_of(stream),
                   [&] { return ncclRecv(y.data, y.bytes(), ncclUint8, peer, comm_, handle_of(stream)); });
  });
}

Status NcclCommunicator::exchange(Stream& stream, int to, In x, int from, Out y) {
  return run("exchange", [&] {
    TELAR_RETURN_IF_ERROR(check_peer(to, rank(), size()));
    TELAR_RETURN_IF_ERROR(check_peer(from, rank(), size()));
    TELAR_RETURN_IF_ERROR(check_whole("y", y, x, 1));
    if (x.bytes() == 0) return absl::OkStatus();
    return enqueue("exchange", handle_of(stream), [&] {
      const ncclResult_t begun = ncclGroupStart();
      if (begun != ncclSuccess) return begun;
      const ncclResult_t sent = ncclSend(x.data, x.bytes(), ncclUint8, to, comm_, handle_of(stream));
      const ncclResult_t received = ncclRecv(y.data, y.bytes(), ncclUint8, from, comm_, handle_of(stream));
      const ncclResult_t ended = ncclGroupEnd();  // In any case: else the thread's later calls would join the group.
      for (const ncclResult_t result : {sent, received}) {
        if (result != ncclSuccess && result != ncclInProgress) return result;
      }
      return ended;
    });
  });
}

Status NcclCommunicator::barrier() {
  return run("barrier", [&] {
    if (size() == 1) return absl::OkStatus();
    const Clock::time_point deadline = Clock::now() + options_.call_timeout;
    TELAR_RETURN_IF_ERROR(to_status(cudaSetDevice(device_), "cudaSetDevice"));
    TELAR_RETURN_IF_ERROR(enqueue("barrier", barrier_stream_, [&] {
      return ncclAllReduce(barrier_token_, barrier_token_, 1, ncclInt32, ncclSum, comm_, barrier_stream_);
    }));
    return wait_for_barrier(deadline);
  });
}

Status NcclCommunicator::wait_for_barrier(Clock::time_point deadline) {
  while (true) {
    const cudaError_t done = cudaStreamQuery(barrier_stream_);
    if (done == cudaSuccess) return NcclWatchdog::instance().failure(device_);  // After an abort it is done as well.
    if (!is_not_ready(done)) return to_status(done, "cudaStreamQuery");
    if (Clock::now() >= deadline) return absl::DeadlineExceededError("a peer is not there");
    std::this_thread::sleep_for(kPoll);
  }
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> create_nccl_communicators(int device, KeyValueStore& store,
                                                                                     const GangOptions& options,
                                                                                     std::span<const Group> groups) {
  TELAR_RETURN_IF_ERROR(check_groups(options, groups));
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (const Group& group : groups) {
    const auto place = std::ranges::find(group.ranks, options.rank) - group.ranks.begin();
    auto made = NcclCommunicator::create(device, store,
                                         {.name = group.name,
                                          .rank = static_cast<int>(place),
                                          .size = static_cast<int>(group.ranks.size()),
                                          .listen_host = options.listen_host,
                                          .connect_timeout = options.connect_timeout,
                                          .call_timeout = options.call_timeout});
    if (!made.ok()) return made.status();
    communicators.push_back(*std::move(made));
  }
  return communicators;
}

}  // namespace telar::backend::cuda
