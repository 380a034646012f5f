#include "worker/engine/validate.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/engine/memory_plan.h"

namespace telar::engine {
namespace {

using Clock = std::vector<uint32_t>;  // By lane: ops of it that are known to have finished.

struct Shadow {
  uint64_t end = 0;
  BufferId holds = backend::kNoBuffer;  // Whose contents the bytes are; none: nobody's.
  OpId writer = kNoOp;
  std::vector<OpId> readers;  // By lane: its last read since the write. Empty: no reads.
};
using ShadowMap = std::map<uint64_t, Shadow>;

class Validator {
 public:
  Validator(const Program& program, const Plan& plan)
      : program_(program), plan_(plan), shadows_(kMemoryClasses + program.buffers().size()) {}

  absl::Status run() {
    absl::Status status = check_sizes();
    if (status.ok()) status = check_placement();
    for (OpId op = 0; status.ok() && op < program_.ops().size(); ++op) {
      status = follow(op);
      if (status.ok()) status = touch(op);
    }
    return status.ok() ? check_persistent() : status;
  }

 private:
  std::string op_name(OpId op) const { return absl::StrCat("op '", program_.ops()[op].name, "'"); }
  std::string buffer_name(BufferId buffer) const { return absl::StrCat("'", program_.buffers()[buffer].name, "'"); }
  static absl::Status broken(const std::string& what) { return absl::InternalError(absl::StrCat("plan: ", what)); }

  absl::Status check_sizes() {
    if (plan_.ops.size() != program_.ops().size() || plan_.predecessors.size() != program_.ops().size() ||
        plan_.offsets.size() != program_.buffers().size()) {
      return broken("made for another program");
    }
    clocks_.resize(program_.ops().size());
    position_.resize(program_.ops().size());
    lane_last_.assign(plan_.lanes.size(), kNoOp);
    recorder_.assign(plan_.events, kNoOp);
    return absl::OkStatus();
  }

  absl::Status check_placement() {
    for (BufferId id = 0; id < program_.buffers().size(); ++id) {
      const Buffer& buffer = program_.buffers()[id];
      if (buffer.lifetime == Lifetime::kExternal) {
        if (buffer.bytes > 0) shadows_[kMemoryClasses + id][0] = Shadow{buffer.bytes, id, kNoOp, {}};
        continue;
      }
      if (plan_.offsets[id] % kBufferAlignment != 0) return broken(absl::StrCat(buffer_name(id), " is not aligned"));
      if (buffer.lifetime != Lifetime::kPersistent || buffer.bytes == 0) continue;
      if (!inside(id, buffer.bytes)) return broken(absl::StrCat(buffer_name(id), " is outside its arena"));
      ShadowMap& shadow = shadows_[static_cast<size_t>(buffer.memory_class)];
      const uint64_t begin = plan_.offsets[id];
      const uint64_t end = begin + buffer.bytes;
      cut(shadow, begin);
      const auto next = shadow.lower_bound(begin);
      if (next != shadow.end() && next->first < end) {
        return broken(absl::StrCat("persistent ", buffer_name(id), " overlaps ", buffer_name(next->second.holds)));
      }
      shadow[begin] = Shadow{end, id, kNoOp, {}};
    }
    return absl::OkStatus();
  }

  bool inside(BufferId id, uint64_t end) const {
    const Buffer& buffer = program_.buffers()[id];
    if (end > buffer.bytes) return false;
    if (buffer.lifetime == Lifetime::kExternal) return true;
    return plan_.offsets[id] + end <= plan_.arena_bytes[static_cast<size_t>(buffer.memory_class)];
  }

  // What the lanes and events say must have finished before `op`.
  absl::Status follow(OpId op) {
    const PlannedOp& planned = plan_.ops[op];
    if (planned.lane >= plan_.lanes.size() || plan_.lanes[planned.lane] != program_.ops()[op].lane) {
      return broken(absl::StrCat(op_name(op), " is not on its lane ", program_.ops()[op].lane.to_string()));
    }
    Clock clock(plan_.lanes.size(), 0);
    OpId& last = lane_last_[planned.lane];
    if (last != kNoOp) clock = clocks_[last];
    for (uint32_t event : planned.waits) {
      if (event >= plan_.events || recorder_[event] == kNoOp) {
        return broken(absl::StrCat(op_name(op), " waits for event ", event, ", which no earlier op records"));
      }
      const Clock& other = clocks_[recorder_[event]];
      for (size_t lane = 0; lane < clock.size(); ++lane) clock[lane] = std::max(clock[lane], other[lane]);
    }
    position_[op] = ++clock[planned.lane];
    clocks_[op] = std::move(clock);
    last = op;
    if (planned.record != kNoEvent) {
      if (planned.record >= plan_.events || recorder_[planned.record] != kNoOp) {
        return broken(absl::StrCat(op_name(op), " records event ", planned.record, ", which is not its own"));
      }
      recorder_[planned.record] = op;
    }
    for (OpId earlier : program_.ops()[op].after) {
      if (!ordered(earlier, op)) {
        return broken(absl::StrCat(op_name(op), " does not wait for ", op_name(earlier), " as it should"));
      }
    }
    for (OpId predecessor : plan_.predecessors[op]) {
      if (predecessor >= op) return broken(absl::StrCat(op_name(op), " has a predecessor after it"));
    }
    return absl::OkStatus();
  }

  bool ordered(OpId earlier, OpId op) const {
    return earlier == op || clocks_[op][plan_.ops[earlier].lane] >= position_[earlier];
  }

  // Reads see the bytes as they were before the op's writes.
  absl::Status touch(OpId op) {
    for (const bool writes : {false, true}) {
      for (const Access& access : program_.ops()[op].accesses) {
        if (access.begin == access.end) continue;
        if (!inside(access.buffer, access.end)) {
          return broken(absl::StrCat(op_name(op), " touches bytes outside of ", buffer_name(access.buffer)));
        }
        absl::Status status = absl::OkStatus();
        if (!writes && access.reads()) status = read(op, access);
        if (writes && access.writes()) status = write(op, access);
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status race(OpId op, OpId other, BufferId buffer) const {
    return broken(absl::StrCat("nothing orders ", op_name(other), " before ", op_name(op), ", and both touch bytes of ",
                               buffer_name(buffer)));
  }

  absl::Status read(OpId op, const Access& access) {
    const auto [space, base] = locate(access.buffer);
    ShadowMap& shadow = shadows_[space];
    uint64_t at = base + access.begin;
    const uint64_t end = base + access.end;
    cut(shadow, at);
    cut(shadow, end);
    for (auto entry = shadow.find(at); at < end; ++entry) {
      if (entry == shadow.end() || entry->first != at || entry->second.holds != access.buffer) {
        return broken(absl::StrCat(op_name(op), " reads byte ", at - base, " of ", buffer_name(access.buffer),
                                   ", which holds something else"));
      }
      Shadow& bytes = entry->second;
      if (bytes.writer != kNoOp && !ordered(bytes.writer, op)) return race(op, bytes.writer, access.buffer);
      if (bytes.readers.empty()) bytes.readers.assign(plan_.lanes.size(), kNoOp);
      bytes.readers[plan_.ops[op].lane] = op;
      at = bytes.end;
    }
    return absl::OkStatus();
  }

  absl::Status write(OpId op, const Access& access) {
    const auto [space, base] = locate(access.buffer);
    ShadowMap& shadow = shadows_[space];
    const uint64_t begin = base + access.begin;
    const uint64_t end = base + access.end;
    cut(shadow, begin);
    cut(shadow, end);
    auto first = shadow.lower_bound(begin);
    auto last = first;
    for (; last != shadow.end() && last->first < end; ++last) {
      const Shadow& bytes = last->second;
      if (bytes.writer != kNoOp && !ordered(bytes.writer, op)) return race(op, bytes.writer, access.buffer);
      const bool touched_now =
          bytes.writer == op || (!bytes.readers.empty() && bytes.readers[plan_.ops[op].lane] == op);
      if (touched_now && bytes.holds != access.buffer) {
        return broken(absl::StrCat(op_name(op), " uses the same bytes as ", buffer_name(bytes.holds), " and as ",
                                   buffer_name(access.buffer)));
      }
      for (OpId reader : bytes.readers) {
        if (reader != kNoOp && !ordered(reader, op)) return race(op, reader, access.buffer);
      }
    }
    shadow.erase(first, last);
    shadow[begin] = Shadow{end, access.buffer, op, {}};
    return absl::OkStatus();
  }

  absl::Status check_persistent() {
    for (BufferId id = 0; id < program_.buffers().size(); ++id) {
      if (program_.buffers()[id].lifetime != Lifetime::kPersistent) continue;
      const auto [space, base] = locate(id);
      uint64_t at = base;
      const uint64_t end = base + program_.buffers()[id].bytes;
      for (auto entry = shadows_[space].find(at); at < end; ++entry) {
        if (entry == shadows_[space].end() || entry->first != at || entry->second.holds != id) {
          return broken(absl::StrCat("persistent ", buffer_name(id), " is overwritten by another buffer"));
        }
        at = entry->second.end;
      }
    }
    return absl::OkStatus();
  }

  std::pair<size_t, uint64_t> locate(BufferId id) const {
    const Buffer& buffer = program_.buffers()[id];
    if (buffer.lifetime == Lifetime::kExternal) return {kMemoryClasses + static_cast<size_t>(id), 0};
    return {static_cast<size_t>(buffer.memory_class), plan_.offsets[id]};
  }

  static void cut(ShadowMap& shadow, uint64_t at) {
    auto next = shadow.lower_bound(at);
    if (next == shadow.begin()) return;
    auto before = std::prev(next);
    if (before->second.end <= at) return;
    Shadow upper = before->second;
    before->second.end = at;
    shadow.emplace_hint(next, at, std::move(upper));
  }

  const Program& program_;
  const Plan& plan_;
  std::vector<ShadowMap> shadows_;  // An arena each, then an external buffer each.
  std::vector<Clock> clocks_;       // By OpId.
  std::vector<uint32_t> position_;  // By OpId: place on its lane, from 1.
  std::vector<OpId> lane_last_;
  std::vector<OpId> recorder_;  // By event.
};

}  // namespace

absl::Status validate(const Program& program, const Plan& plan) { return Validator(program, plan).run(); }

}  // namespace telar::engine
