#include "tests/worker/engine/testing.h"

#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "worker/backend/cpu/cpu.h"

namespace telar::engine::testing {
namespace {

using backend::AccessMode;

uint64_t scramble(uint64_t x) {  // The finalizer of SplitMix64.
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

int uniform(std::mt19937_64& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
}

void run_mix(uint64_t id, const std::vector<Access>& accesses, const Addresses& addresses) {
  uint64_t hash = scramble(id + 1);
  for (const Access& access : accesses) {
    if (!access.reads()) continue;
    const std::byte* base = addresses.base(access.buffer);
    for (uint64_t i = access.begin; i < access.end; ++i)
      hash = (hash ^ static_cast<uint64_t>(base[i])) * 0x100000001b3u;
  }
  if (scramble(hash) % 8 == 0) std::this_thread::yield();
  for (const Access& access : accesses) {
    if (!access.writes()) continue;
    std::byte* base = addresses.base(access.buffer);
    for (uint64_t i = access.begin; i < access.end; ++i) base[i] = static_cast<std::byte>(scramble(hash + i));
  }
}

// Which bytes of a transient hold something, to read no others.
class Written {
 public:
  explicit Written(const Program& program) {
    for (const Buffer& buffer : program.buffers()) {
      bytes_.emplace_back(buffer.bytes, buffer.lifetime != Lifetime::kTransient);
    }
  }
  bool all(const Access& access) const {
    for (uint64_t i = access.begin; i < access.end; ++i) {
      if (!bytes_[access.buffer][i]) return false;
    }
    return true;
  }
  void set(const Access& access) {
    for (uint64_t i = access.begin; i < access.end; ++i) bytes_[access.buffer][i] = true;
  }

 private:
  std::vector<std::vector<bool>> bytes_;
};

struct RandomBuffers {
  std::vector<Tensor> device;  // At least two.
  std::vector<Tensor> host;
};

RandomBuffers random_buffers(Program& program, std::mt19937_64& random) {
  RandomBuffers all;
  std::vector<Tensor>& tensors = all.device;
  const int buffers = uniform(random, 2, 9);
  for (int i = 0; i < buffers; ++i) {
    const std::string name = absl::StrCat("b", i);
    const int bytes = random() % 4 == 0 ? uniform(random, 256, 700) : uniform(random, 1, 64);
    const auto memory_class = random() % 2 == 0 ? MemoryClass::kActivations : MemoryClass::kGrads;
    const int lifetime = uniform(random, 0, 9);
    if (lifetime < 3) {
      tensors.push_back(persistent(program, name, bytes, memory_class));
    } else if (lifetime < 4) {
      tensors.push_back(external(program, name, bytes));
    } else {
      tensors.push_back(transient(program, name, bytes, memory_class));
    }
  }
  const int hosts = uniform(random, 0, 3);
  for (int i = 0; i < hosts; ++i) {
    const auto make = random() % 3 == 0 ? persistent : transient;
    all.host.push_back(make(program, absl::StrCat("h", i), uniform(random, 1, 300), MemoryClass::kHost));
  }
  return all;
}

Access random_access(const std::vector<Tensor>& tensors, std::mt19937_64& random) {
  const Tensor& tensor = tensors[random() % tensors.size()];
  auto begin = uint64_t{0};
  auto end = tensor.bytes();
  if (random() % 2 == 0) {
    begin = random() % (tensor.bytes() + 1);
    end = begin + random() % (tensor.bytes() - begin + 1);
  }
  return make_access(tensor, begin, end, static_cast<AccessMode>(uniform(random, 0, 2)));
}

}  // namespace

Access make_access(const Tensor& tensor, uint64_t begin, uint64_t end, AccessMode mode) {
  return {tensor.buffer(), tensor.offset() + begin, tensor.offset() + end, mode};
}
Access read(const Tensor& tensor) { return make_access(tensor, 0, tensor.bytes(), AccessMode::kRead); }
Access write(const Tensor& tensor) { return make_access(tensor, 0, tensor.bytes(), AccessMode::kWrite); }
Access update(const Tensor& tensor) { return make_access(tensor, 0, tensor.bytes(), AccessMode::kReadWrite); }

Tensor persistent(Program& program, const std::string& name, int64_t bytes, MemoryClass memory_class) {
  return program.persistent(name, DType::kU8, {bytes}, memory_class);
}
Tensor transient(Program& program, const std::string& name, int64_t bytes, MemoryClass memory_class) {
  return program.transient(name, DType::kU8, {bytes}, memory_class);
}
Tensor external(Program& program, const std::string& name, int64_t bytes) {
  return program.external(name, DType::kU8, {bytes});
}

OpId add(Program& program, const std::string& name, Lane lane, std::vector<Access> accesses, Body body) {
  Op op;
  op.name = name;
  op.lane = lane;
  op.accesses = std::move(accesses);
  op.run = std::move(body);
  return program.add_op(std::move(op));
}

OpId mix(Program& program, const std::string& name, Lane lane, std::vector<Access> accesses) {
  const uint64_t id = program.ops().size();
  const std::vector<Access> touched = accesses;
  return add(program, name, lane, std::move(accesses), [id, touched](const RunContext& context, backend::Stream&) {
    run_mix(id, touched, *context.addresses);
    return absl::OkStatus();
  });
}

namespace {

// Of `bytes` from somewhere in the tensor.
Tensor random_part(const Tensor& tensor, int64_t bytes, std::mt19937_64& random) {
  return tensor.slice(uniform(random, 0, static_cast<int>(tensor.elements() - bytes)), {bytes});
}

// A copy out, or, where the host's bytes are known to hold something, perhaps one in.
void random_copy(Program& program, const std::string& name, const RandomBuffers& buffers, Written& written,
                 std::mt19937_64& random) {
  const Tensor& device = buffers.device[random() % buffers.device.size()];
  const Tensor& host = buffers.host[random() % buffers.host.size()];
  const auto bytes = uniform(random, 1, static_cast<int>(std::min(device.elements(), host.elements())));
  const Tensor here = random_part(device, bytes, random), there = random_part(host, bytes, random);
  const bool in = written.all(read(there)) && (random() % 2 == 0 || !written.all(read(here)));
  const Tensor from = in ? there : here, to = in ? here : there;
  if (!written.all(read(from))) return;
  program.record_copy(name, in ? LaneKind::kCopyIn : LaneKind::kCopyOut, from.in(), to.out());
  written.set(write(to));
}

}  // namespace

std::unique_ptr<backend::Device> create_device() { return backend::cpu::create_device({}, nullptr, nullptr); }

Program random_program(uint64_t seed) {
  std::mt19937_64 random(seed);
  Program program;
  const RandomBuffers buffers = random_buffers(program, random);
  std::vector<Tensor> everywhere = buffers.device;
  everywhere.insert(everywhere.end(), buffers.host.begin(), buffers.host.end());
  const Lane lanes[] = {kComputeLane, comm_lane(0),           comm_lane(1),
                        comm_lane(2), {LaneKind::kCopyIn, 0}, {LaneKind::kCopyOut, 0}};
  const int lane_count = uniform(random, 1, 6);
  const int ops = uniform(random, 1, 24);
  Written written(program);
  for (int op = 0; op < ops; ++op) {
    const Lane lane = lanes[random() % static_cast<uint64_t>(lane_count)];
    if (!program.ops().empty() && random() % 6 == 0) {
      program.wait_for(lane, static_cast<OpId>(random() % program.ops().size()));
    }
    if (!buffers.host.empty() && random() % 4 == 0) {
      random_copy(program, absl::StrCat("copy", op), buffers, written, random);
      continue;
    }
    const bool copies = lane.kind == LaneKind::kCopyIn || lane.kind == LaneKind::kCopyOut;
    std::vector<Access> accesses;
    const int count = uniform(random, 1, 4);
    for (int i = 0; i < count; ++i) {
      Access access = random_access(copies ? everywhere : buffers.device, random);
      if (access.reads() && !written.all(access)) access.mode = AccessMode::kWrite;
      accesses.push_back(access);
    }
    for (const Access& access : accesses) {
      if (access.writes()) written.set(access);
    }
    mix(program, absl::StrCat("op", op), lane, std::move(accesses));
  }
  return program;
}

std::vector<OpId> random_topological_order(const Plan& plan, uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t ops = plan.predecessors.size();
  std::vector<std::vector<OpId>> successors(ops);
  std::vector<size_t> missing(ops);
  std::vector<OpId> ready, order;
  for (OpId op = 0; op < ops; ++op) {
    missing[op] = plan.predecessors[op].size();
    for (OpId before : plan.predecessors[op]) successors[before].push_back(op);
    if (missing[op] == 0) ready.push_back(op);
  }
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    order.push_back(ready.back());
    ready.pop_back();
    for (OpId after : successors[order.back()]) {
      if (--missing[after] == 0) ready.push_back(after);
    }
  }
  return order;
}

}  // namespace telar::engine::testing
