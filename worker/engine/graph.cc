#include "worker/engine/graph.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

namespace telar::engine {
namespace {

// Who touched each byte of one address space last. Segments are disjoint; bytes in none are untouched.
class RangeMap {
 public:
  struct Segment {
    uint64_t end = 0;
    BufferId owner = backend::kNoBuffer;  // Of the last access.
    OpId writer = kNoOp;
    std::vector<OpId> readers;  // Since the writer, ascending.
  };

  // Calls `visit` for the segments of exactly [begin, end); untouched bytes get empty segments first.
  template <typename Visit>
  void for_each(uint64_t begin, uint64_t end, Visit visit) {
    auto segment = isolate(begin, end);
    for (; segment != segments_.end() && segment->first < end; ++segment) visit(segment->first, segment->second);
  }

  // Makes [begin, end) one segment.
  void replace(uint64_t begin, uint64_t end, Segment segment) {
    auto first = isolate(begin, end);
    auto last = segments_.lower_bound(end);
    segments_.erase(first, last);
    segment.end = end;
    segments_.emplace_hint(last, begin, std::move(segment));
  }

 private:
  using Map = std::map<uint64_t, Segment>;

  Map::iterator isolate(uint64_t begin, uint64_t end) {
    split(begin);
    split(end);
    uint64_t at = begin;
    for (auto next = segments_.lower_bound(begin); at < end; ++next) {
      const uint64_t next_begin = next == segments_.end() ? end : std::min(end, next->first);
      if (at < next_begin) {
        Segment empty;
        empty.end = next_begin;
        next = segments_.emplace_hint(next, at, std::move(empty));
      }
      at = next->second.end;
    }
    return segments_.lower_bound(begin);
  }

  void split(uint64_t at) {
    auto next = segments_.lower_bound(at);
    if (next == segments_.begin()) return;
    auto before = std::prev(next);
    if (before->second.end <= at) return;
    Segment upper = before->second;
    before->second.end = at;
    segments_.emplace_hint(next, at, std::move(upper));
  }

  Map segments_;
};

// An access in the address space that the graph is built over.
struct Range {
  size_t space = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

class GraphBuilder {
 public:
  GraphBuilder(const Program& program, size_t spaces)
      : program_(program), maps_(spaces), graph_(program.ops().size()) {}

  // `locate` turns an Access into its Range. Fails only where an op reads transient bytes that nobody wrote, and then
  // only if `check_reads`.
  template <typename Locate>
  absl::Status add_all(Locate locate, bool check_reads) {
    for (OpId op = 0; op < program_.ops().size(); ++op) {
      const std::vector<Access>& accesses = program_.ops()[op].accesses;
      // What the op itself touches must not order it after itself: look first, then mark.
      for (const Access& access : accesses) {
        if (access.begin == access.end) continue;
        absl::Status status = look(op, access, locate(access), check_reads);
        if (!status.ok()) return status;
      }
      for (const bool writes : {false, true}) {
        for (const Access& access : accesses) {
          if (access.begin != access.end && access.writes() == writes) mark(op, access, locate(access));
        }
      }
      for (OpId earlier : program_.ops()[op].after) graph_[op].push_back({earlier, kAsked, backend::kNoBuffer});
      merge_duplicates(graph_[op]);
    }
    return absl::OkStatus();
  }

  // One communicator sees one order.
  void chain_comm_lanes() {
    std::map<Lane, OpId> last;
    for (OpId op = 0; op < program_.ops().size(); ++op) {
      const Lane& lane = program_.ops()[op].lane;
      if (lane.kind != LaneKind::kComm) continue;
      auto [entry, first] = last.try_emplace(lane, op);
      if (first) continue;
      graph_[op].push_back({entry->second, kIssue, backend::kNoBuffer});
      merge_duplicates(graph_[op]);
      entry->second = op;
    }
  }

  Graph take() { return std::move(graph_); }

 private:
  absl::Status look(OpId op, const Access& access, const Range& range, bool check_reads) {
    std::vector<Edge>& edges = graph_[op];
    uint64_t unwritten = range.end;  // The first byte that is read and that nobody wrote.
    maps_[range.space].for_each(range.begin, range.end, [&](uint64_t begin, RangeMap::Segment& segment) {
      if (segment.writer == kNoOp) unwritten = std::min(unwritten, begin);
      const bool other = segment.owner != backend::kNoBuffer && segment.owner != access.buffer;
      if (access.reads() && segment.writer != kNoOp) edges.push_back({segment.writer, kReadAfterWrite, access.buffer});
      if (!access.writes()) return;
      for (OpId reader : segment.readers) {
        edges.push_back({reader, other ? kReuse : kWriteAfterRead, access.buffer});
      }
      if (segment.readers.empty() && segment.writer != kNoOp) {
        edges.push_back({segment.writer, other ? kReuse : kWriteAfterWrite, access.buffer});
      }
    });
    const Buffer& buffer = program_.buffers()[access.buffer];
    if (check_reads && access.reads() && unwritten < range.end && buffer.lifetime == Lifetime::kTransient) {
      return absl::InvalidArgumentError(absl::StrCat("op '", program_.ops()[op].name, "' reads byte ", unwritten,
                                                     " of transient '", buffer.name, "', which no earlier op wrote"));
    }
    return absl::OkStatus();
  }

  void mark(OpId op, const Access& access, const Range& range) {
    RangeMap& map = maps_[range.space];
    if (access.writes()) {
      RangeMap::Segment segment;
      segment.owner = access.buffer;
      segment.writer = op;
      map.replace(range.begin, range.end, std::move(segment));
      return;
    }
    map.for_each(range.begin, range.end, [&](uint64_t, RangeMap::Segment& segment) {
      segment.owner = access.buffer;
      if (segment.readers.empty() || segment.readers.back() != op) segment.readers.push_back(op);
    });
  }

  static void merge_duplicates(std::vector<Edge>& edges) {
    std::stable_sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.from < b.from; });
    size_t kept = 0;
    for (const Edge& edge : edges) {
      if (kept > 0 && edges[kept - 1].from == edge.from) {
        edges[kept - 1].kinds |= edge.kinds;
        if (edges[kept - 1].buffer == backend::kNoBuffer) edges[kept - 1].buffer = edge.buffer;
      } else {
        edges[kept++] = edge;
      }
    }
    edges.resize(kept);
  }

  const Program& program_;
  std::vector<RangeMap> maps_;
  Graph graph_;
};

absl::Status check_bounds(const Program& program) {
  for (OpId id = 0; id < program.ops().size(); ++id) {
    const Op& op = program.ops()[id];
    for (OpId earlier : op.after) {
      if (earlier >= id) return absl::InvalidArgumentError(absl::StrCat("op '", op.name, "' waits for a later op"));
    }
    for (const Access& access : op.accesses) {
      if (access.buffer >= program.buffers().size()) {
        return absl::InvalidArgumentError(absl::StrCat("op '", op.name, "' touches buffer number ", access.buffer,
                                                       ", but the program has ", program.buffers().size()));
      }
      const Buffer& buffer = program.buffers()[access.buffer];
      if (access.begin > access.end || access.end > buffer.bytes) {
        return absl::InvalidArgumentError(absl::StrCat("op '", op.name, "' touches bytes [", access.begin, ", ",
                                                       access.end, ") of '", buffer.name, "', which has ",
                                                       buffer.bytes));
      }
      const bool copies = op.lane.kind == LaneKind::kCopyIn || op.lane.kind == LaneKind::kCopyOut;
      if (buffer.memory_class == MemoryClass::kHost && !copies) {
        return absl::InvalidArgumentError(absl::StrCat("op '", op.name, "' on lane ", op.lane.to_string(), " touches '",
                                                       buffer.name, "' in host memory, which only copy lanes may"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string edge_kinds_to_string(uint8_t kinds) {
  std::string text;
  const auto add = [&](EdgeKind kind, const char* name) {
    if (kinds & kind) absl::StrAppend(&text, text.empty() ? "" : "+", name);
  };
  add(kReadAfterWrite, "RAW");
  add(kWriteAfterRead, "WAR");
  add(kWriteAfterWrite, "WAW");
  add(kReuse, "reuse");
  add(kIssue, "issue");
  add(kAsked, "asked");
  return text;
}

absl::StatusOr<Graph> build_graph(const Program& program) {
  absl::Status status = check_bounds(program);
  if (!status.ok()) return status;
  GraphBuilder builder(program, program.buffers().size());
  status = builder.add_all([](const Access& access) { return Range{access.buffer, access.begin, access.end}; }, true);
  if (!status.ok()) return status;
  return builder.take();
}

Graph build_placed_graph(const Program& program, const std::vector<uint64_t>& offsets) {
  // A space an arena, and one for each external buffer: those do not overlap anything.
  GraphBuilder builder(program, kMemoryClasses + program.buffers().size());
  const auto locate = [&](const Access& access) {
    const Buffer& buffer = program.buffers()[access.buffer];
    if (buffer.lifetime == Lifetime::kExternal) {
      return Range{kMemoryClasses + static_cast<size_t>(access.buffer), access.begin, access.end};
    }
    const uint64_t offset = offsets[access.buffer];
    return Range{static_cast<size_t>(buffer.memory_class), offset + access.begin, offset + access.end};
  };
  builder.add_all(locate, false).IgnoreError();  // Without the check there is none.
  builder.chain_comm_lanes();
  return builder.take();
}

}  // namespace telar::engine
