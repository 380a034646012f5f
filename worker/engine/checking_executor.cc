#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "worker/engine/executor.h"

namespace telar::engine {
namespace {

// Unlike each other in every byte; the first makes NaNs of floats.
constexpr std::byte kPoison[] = {std::byte{0xff}, std::byte{0x5a}};
constexpr size_t kGuardBytes = 256;  // Poison behind each buffer.

using Bytes = std::vector<std::byte>;

// A copy of all buffers in which an op runs alone. Between ops all of it is poison.
struct World {
  explicit World(size_t buffers) : addresses(buffers), poison(buffers) {}
  Addresses addresses;
  std::vector<std::byte> poison;  // By BufferId.
  std::vector<std::unique_ptr<backend::Memory>> memory;
};

class CheckingExecutor final : public Executor {
 public:
  CheckingExecutor(const Program& program, const Plan& plan, backend::Device& device,
                   std::vector<backend::Communicator*> groups)
      : Executor(program, plan, device, std::move(groups)),
        worlds_{World(program.buffers().size()), World(program.buffers().size())} {}

  absl::Status prepare() {
    absl::Status status = check_program();
    if (!status.ok()) return status;
    for (BufferId id = 0; id < program_.buffers().size(); ++id) {
      if (is_external(id)) continue;
      absl::StatusOr<std::unique_ptr<backend::Memory>> memory = device_.allocate(bytes_of(id));
      if (!memory.ok()) return memory.status();
      addresses_.set(id, (*memory)->data());
      truth_.push_back(*std::move(memory));
      for (size_t i = 0; i < 2; ++i) {
        memory = device_.allocate(bytes_of(id) + kGuardBytes);
        if (!memory.ok()) return memory.status();
        worlds_[i].addresses.set(id, (*memory)->data());
        worlds_[i].memory.push_back(*std::move(memory));
        set_poison(worlds_[i], id, kPoison[i]);
      }
    }
    absl::StatusOr<std::unique_ptr<backend::Stream>> stream = device_.create_stream("checking", true);
    if (!stream.ok()) return stream.status();
    stream_ = *std::move(stream);
    return absl::OkStatus();
  }

  absl::Status submit() override {
    absl::Status status = check_bound();
    if (status.ok()) status = stream_->synchronize();  // What others enqueued on origin().
    for (BufferId id = 0; id < program_.buffers().size(); ++id) {
      if (!is_external(id)) continue;
      for (World& world : worlds_) world.addresses.set(id, addresses_.base(id));
    }
    for (OpId op = 0; status.ok() && op < program_.ops().size(); ++op) status = check(op);
    if (status.ok()) count_good_run();
    return status;
  }
  absl::Status wait() override { return stream_->synchronize(); }
  backend::Stream& origin() override { return *stream_; }

 private:
  bool is_external(BufferId id) const { return program_.buffers()[id].lifetime == Lifetime::kExternal; }
  size_t bytes_of(BufferId id) const { return program_.buffers()[id].bytes; }

  absl::Status broken(OpId op, const std::string& what, BufferId id, uint64_t byte) const {
    return absl::InternalError(absl::StrCat("op '", program_.ops()[op].name, "' ", what, " byte ", byte, " of '",
                                            program_.buffers()[id].name, "'"));
  }

  void set_poison(World& world, BufferId id, std::byte poison) {
    world.poison[id] = poison;
    std::fill_n(world.addresses.base(id), bytes_of(id) + kGuardBytes, poison);
  }

  absl::Status check(OpId op) {
    absl::StatusOr<Bytes> first = outcome(op, worlds_[0]);
    if (!first.ok()) return first.status();
    absl::StatusOr<Bytes> second = outcome(op, worlds_[1]);
    if (!second.ok()) return second.status();
    if (*first != *second) return explain(op, *first);
    const std::byte* from = first->data();
    for (const Access& access : program_.ops()[op].accesses) {
      if (!access.writes()) continue;
      std::copy_n(from, access.end - access.begin, addresses_.base(access.buffer) + access.begin);
      from += access.end - access.begin;
    }
    return absl::OkStatus();
  }

  // Runs the op in `world` and returns what it left in its declared writes, one after another. World and external
  // buffers are afterwards as before.
  absl::StatusOr<Bytes> outcome(OpId op, World& world) {
    const std::vector<Access>& accesses = program_.ops()[op].accesses;
    Bytes external_before;
    for (const Access& access : accesses) {
      const std::byte* truth = addresses_.base(access.buffer);
      if (is_external(access.buffer)) {
        if (access.writes()) external_before.insert(external_before.end(), truth + access.begin, truth + access.end);
      } else if (access.reads()) {
        std::copy(truth + access.begin, truth + access.end, world.addresses.base(access.buffer) + access.begin);
      }
    }
    const RunContext context{&world.addresses, &device_, &groups_};
    const std::function<absl::Status(backend::Stream&)> work = [&](backend::Stream& stream) {
      return run_op(op, context, stream);
    };
    stream_->submit(work);
    absl::Status status = stream_->synchronize();
    if (status.ok()) status = check_undeclared_writes(op, world);
    if (!status.ok()) return status;

    Bytes written;
    const std::byte* before = external_before.data();
    for (const Access& access : accesses) {
      std::byte* base = world.addresses.base(access.buffer);
      if (access.writes()) written.insert(written.end(), base + access.begin, base + access.end);
    }
    for (const Access& access : accesses) {
      std::byte* base = world.addresses.base(access.buffer);
      if (!is_external(access.buffer)) {
        std::fill(base + access.begin, base + access.end, world.poison[access.buffer]);
      } else if (access.writes()) {
        std::copy_n(before, access.end - access.begin, base + access.begin);
        before += access.end - access.begin;
      }
    }
    return written;
  }

  absl::Status check_undeclared_writes(OpId op, const World& world) const {
    for (BufferId id = 0; id < program_.buffers().size(); ++id) {
      if (is_external(id)) continue;
      Bytes expected(bytes_of(id) + kGuardBytes, world.poison[id]);
      const std::byte* got = world.addresses.base(id);
      for (const bool writes : {false, true}) {
        for (const Access& access : program_.ops()[op].accesses) {
          if (access.buffer != id || access.writes() != writes) continue;
          const std::byte* from = writes ? got : addresses_.base(id);
          std::copy(from + access.begin, from + access.end, expected.data() + access.begin);
        }
      }
      const auto difference = std::mismatch(expected.begin(), expected.end(), got);
      if (difference.first == expected.end()) continue;
      return broken(op, "writes without declaring it", id, static_cast<uint64_t>(difference.second - got));
    }
    return absl::OkStatus();
  }

  // Two outcomes differ though all declared inputs were the same: tries whose poison it is that shows.
  absl::Status explain(OpId op, const Bytes& first) {
    for (BufferId id = 0; id < program_.buffers().size(); ++id) {
      if (is_external(id)) continue;
      set_poison(worlds_[0], id, kPoison[1]);
      absl::StatusOr<Bytes> changed = outcome(op, worlds_[0]);
      set_poison(worlds_[0], id, kPoison[0]);
      if (!changed.ok()) return changed.status();
      if (*changed == first) continue;
      if (std::optional<uint64_t> byte = first_unwritten(op, id, first, *changed); byte.has_value()) {
        return broken(op, "declares to write, but leaves,", id, *byte);
      }
      return absl::InternalError(absl::StrCat("op '", program_.ops()[op].name, "' reads bytes of '",
                                              program_.buffers()[id].name, "' without declaring it"));
    }
    return absl::InternalError(absl::StrCat("op '", program_.ops()[op].name, "' is not deterministic"));
  }

  // A byte of a write-only access to `id` that is its poison still.
  std::optional<uint64_t> first_unwritten(OpId op, BufferId id, const Bytes& first, const Bytes& changed) const {
    size_t at = 0;
    for (const Access& access : program_.ops()[op].accesses) {
      if (!access.writes()) continue;
      for (uint64_t byte = access.begin; byte < access.end; ++byte, ++at) {
        const bool poison = first[at] == kPoison[0] && changed[at] == kPoison[1];
        if (poison && access.buffer == id && !access.reads()) return byte;
      }
    }
    return std::nullopt;
  }

  std::vector<std::unique_ptr<backend::Memory>> truth_;
  World worlds_[2];
  std::unique_ptr<backend::Stream> stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> create_checking_executor(const Program& program, const Plan& plan,
                                                                   backend::Device& device,
                                                                   std::vector<backend::Communicator*> groups) {
  auto executor = std::make_unique<CheckingExecutor>(program, plan, device, std::move(groups));
  absl::Status status = executor->prepare();
  if (!status.ok()) return status;
  return executor;
}

}  // namespace telar::engine
