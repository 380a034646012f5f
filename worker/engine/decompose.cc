#include "worker/engine/decompose.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace telar::engine {
namespace {

using backend::Communicator;
using backend::Kernels;

constexpr int64_t kPieces = 4;  // Of a product, where its rows allow.

Tensor tensor_of(const Access& access) { return Tensor(access.buffer, access.begin, access.dtype, access.shape); }

struct Rows {
  int64_t first = 0;
  int64_t count = 0;
};

class Decomposer {
 public:
  Decomposer(const Program& program, const Decomposition& how)
      : program_(program),
        ops_(program.ops()),
        how_(how),
        result_(program.buffers()),
        users_(program.buffers().size()),
        pairs_(ops_.size()),
        now_(ops_.size()) {
    for (OpId op = 0; op < ops_.size(); ++op) {
      for (const Access& access : ops_[op].accesses) {
        std::vector<OpId>& users = users_[access.buffer];
        if (users.empty() || users.back() != op) users.push_back(op);
      }
    }
  }

  Program run() {
    for (OpId op = 0; op < ops_.size(); ++op) {
      if (!ops_[op].comm || ops_[op].comm->group != how_.group) continue;
      if (ops_[op].comm->kind == CommKind::kAllGather) consider_gather(op);
      if (ops_[op].comm->kind == CommKind::kReduceScatter) consider_scatter(op);
    }
    for (OpId op = 0; op < ops_.size(); ++op) emit(op);
    return std::move(result_);
  }

 private:
  // A collective and a product that are cut together.
  struct Pair {
    OpId collective = 0, product = 0;
    bool gathers = false;
    Tensor local, whole;      // Of the gather; of the scatter: its result and its argument.
    bool read_again = false;  // Of a gather: by others than the product.
    Tensor received;          // Of a scatter: what the others computed of the own rows, by rank.
  };

  // --- What can be cut -----------------------------------------------------------------------------------------

  void consider_gather(OpId gather) {
    const Tensor local = tensor_of(ops_[gather].accesses[0]), whole = tensor_of(ops_[gather].accesses[1]);
    const std::vector<OpId>& users = users_[whole.buffer()];
    if (!is_whole_transient(whole) || users.size() < 2 || users[0] != gather) return;
    const OpId product = users[1];
    if (!cuts(product, whole, backend::AccessMode::kRead) || computes_between(gather, product)) return;
    for (const OpId user : users_[local.buffer()]) {
      if (user > gather && user <= product && writes(user, local.buffer())) return;
    }
    for (size_t i = 1; i < users.size(); ++i) {
      if (writes(users[i], whole.buffer())) return;
    }
    add({.collective = gather,
         .product = product,
         .gathers = true,
         .local = local,
         .whole = whole,
         .read_again = users.size() > 2});
  }

  void consider_scatter(OpId scatter) {
    if (ops_[scatter].comm->reduce != backend::ReduceOp::kSum) return;
    const Tensor whole = tensor_of(ops_[scatter].accesses[0]), local = tensor_of(ops_[scatter].accesses[1]);
    const std::vector<OpId>& users = users_[whole.buffer()];
    if (!is_whole_transient(whole) || users.size() != 2 || users[1] != scatter) return;
    const OpId product = users[0];
    if (!cuts(product, whole, backend::AccessMode::kWrite)) return;
    const std::vector<OpId>& readers = users_[local.buffer()];
    const auto next = std::upper_bound(readers.begin(), readers.end(), scatter);
    if (next == readers.end() || computes_between(scatter, *next)) return;
    const auto before = std::lower_bound(readers.begin(), readers.end(), scatter);
    if (before != readers.begin() && *std::prev(before) >= product) return;
    add({.collective = scatter, .product = product, .local = local, .whole = whole});
  }

  void add(Pair pair) {
    if (pairs_[pair.product]) return;  // One cut an op.
    if (!pair.gathers) {
      const Buffer& buffer = program_.buffers()[pair.whole.buffer()];
      pair.received = result_.transient(buffer.name + ".received", pair.whole.dtype(),
                                        {(how_.size - 1) * block_of(pair.whole), pair.whole.shape().cols()},
                                        MemoryClass::kCommunication);
    }
    pairs_[pair.collective] = pair;
    pairs_[pair.product] = pair;
  }

  bool is_whole_transient(const Tensor& tensor) const {
    const Buffer& buffer = program_.buffers()[tensor.buffer()];
    return buffer.lifetime == Lifetime::kTransient && tensor.offset() == 0 && tensor.bytes() == buffer.bytes;
  }

  // The op can be cut at the blocks of `whole`, which it touches once, so, and completely.
  bool cuts(OpId op, const Tensor& whole, backend::AccessMode mode) const {
    const int64_t rows = whole.shape().rows();
    if (!ops_[op].cut || ops_[op].rows != rows || rows % how_.size != 0 || block_of(whole) < how_.least_rows) {
      return false;
    }
    int touched = 0;
    for (const Access& access : ops_[op].accesses) {
      if (access.buffer != whole.buffer()) continue;
      if (access.mode != mode || !(access.shape == whole.shape())) return false;
      ++touched;
    }
    return touched == 1;
  }

  bool writes(OpId op, BufferId buffer) const {
    return std::ranges::any_of(ops_[op].accesses,
                               [buffer](const Access& access) { return access.buffer == buffer && access.writes(); });
  }

  bool computes_between(OpId from, OpId to) const {
    for (OpId op = from + 1; op < to; ++op) {
      if (ops_[op].lane.kind == LaneKind::kCompute && ops_[op].cost.flops > 0) return true;
    }
    return false;
  }

  // --- How it is cut -------------------------------------------------------------------------------------------

  int64_t block_of(const Tensor& whole) const { return whole.shape().rows() / how_.size; }
  int member(int step) const { return (how_.rank + how_.size + step) % how_.size; }

  // Of a block, its first row being 0.
  std::vector<Rows> pieces(int64_t block) const {
    const int64_t wanted = (kPieces + how_.size - 1) / how_.size;
    const int64_t count = std::clamp<int64_t>(block / how_.least_rows, 1, wanted);
    std::vector<Rows> all;
    for (int64_t i = 0; i < count; ++i) all.push_back({i * block / count, (i + 1) * block / count - i * block / count});
    return all;
  }

  void emit(OpId op) {
    after_.clear();
    for (const OpId earlier : ops_[op].after) after_.push_back(now_[earlier]);
    part_ = 0;
    if (!pairs_[op]) {
      Op same = ops_[op];
      same.after.clear();
      now_[op] = add(std::move(same));
      return;
    }
    const Pair& pair = *pairs_[op];
    if (op == pair.product) {
      pair.gathers ? products_of_gathered(pair) : products_to_scatter(pair);
    } else {
      pair.gathers ? fetch(pair) : sum_up(pair);
    }
  }

  // The first op that stands for one has its waits.
  OpId add(Op op) {
    op.after = std::move(after_);
    after_.clear();
    return result_.add_op(std::move(op));
  }

  OpId add_product(const Pair& pair, const RowCut& rows) {
    const Op& whole = ops_[pair.product];
    Op op = whole.cut(rows);
    op.name = absl::StrCat(whole.name, ".part", part_++);
    op.phase = whole.phase;
    op.portion = whole.portion;
    return now_[pair.product] = add(std::move(op));
  }

  OpId record(const Pair& pair, const char* what, int64_t number, Op op) {
    op.name = absl::StrCat(ops_[pair.collective].name, what, number);
    op.phase = ops_[pair.collective].phase;
    op.portion = ops_[pair.collective].portion;
    return add(std::move(op));
  }

  Op exchange(int to, const Tensor& x, int from, const Tensor& y) const {
    Program scratch;
    scratch.record("", how_.group, &Communicator::exchange, to, x.in(), from, y.out());
    return scratch.ops()[0];
  }

  void fetch(const Pair& pair) {
    const int64_t block = block_of(pair.whole);
    for (int step = 1; step < how_.size; ++step) {
      for (const Rows& rows : pieces(block)) {
        const int from = member(step);
        now_[pair.collective] = record(pair, ".part", part_++,
                                       exchange(member(-step), pair.local.rows(rows.first, rows.count), from,
                                                pair.whole.rows(from * block + rows.first, rows.count)));
      }
    }
  }

  void products_of_gathered(const Pair& pair) {
    const int64_t block = block_of(pair.whole);
    for (int step = 0; step < how_.size; ++step) {
      for (const Rows& rows : pieces(block)) {
        RowCut cut{.first = member(step) * block + rows.first, .count = rows.count};
        if (step == 0) {
          cut.instead_of = pair.whole.buffer();
          cut.read = pair.local.rows(rows.first, rows.count);
        }
        add_product(pair, cut);
      }
    }
    if (!pair.read_again) return;
    Program scratch;
    scratch.record("", &Kernels::copy, pair.local.in(), pair.whole.rows(how_.rank * block, block).out());
    record(pair, ".own", how_.rank, scratch.ops()[0]);
  }

  void products_to_scatter(const Pair& pair) {
    const int64_t block = block_of(pair.whole);
    int64_t sent = 0;
    for (int step = 1; step <= how_.size; ++step) {
      const int to = member(step), from = member(-step);
      for (const Rows& rows : pieces(block)) {
        const Rows of_owner{to * block + rows.first, rows.count};
        add_product(pair, {.first = of_owner.first, .count = of_owner.count});
        if (step == how_.size) continue;
        record(pair, ".part", sent++,
               exchange(to, pair.whole.rows(of_owner.first, of_owner.count), from,
                        pair.received.rows(place_of(from) * block + rows.first, rows.count)));
      }
    }
  }

  int64_t place_of(int member) const { return member < how_.rank ? member : member - 1; }

  void sum_up(const Pair& pair) {
    const int64_t block = block_of(pair.whole);
    const auto part = [&](int member) {
      return member == how_.rank ? pair.whole.rows(member * block, block)
                                 : pair.received.rows(place_of(member) * block, block);
    };
    Tensor sum = part(0);
    for (int member = 1; member < how_.size; ++member) {
      Program scratch;
      scratch.record("", &Kernels::add, sum.in(), part(member).in(), pair.local.out());
      now_[pair.collective] = record(pair, ".sum", member, scratch.ops()[0]);
      sum = pair.local;
    }
  }

  const Program& program_;
  const std::vector<Op>& ops_;
  const Decomposition how_;
  Program result_;
  std::vector<std::vector<OpId>> users_;    // By buffer, ascending.
  std::vector<std::optional<Pair>> pairs_;  // By OpId: of a collective or a product that is cut.
  std::vector<OpId> now_;                   // By OpId: the last op that stands for it.
  std::vector<OpId> after_;                 // What the next op waits for.
  int64_t part_ = 0;
};

}  // namespace

Program decompose(const Program& program, const Decomposition& how) { return Decomposer(program, how).run(); }

}  // namespace telar::engine
