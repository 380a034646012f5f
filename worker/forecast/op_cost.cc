#include "worker/forecast/op_cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "worker/backend/kernels.h"

namespace telar::forecast {
namespace {

using backend::Kernels;
using engine::Access;
using engine::CommKind;
using engine::DType;
using engine::KernelId;
using engine::Op;

bool calls(const Op& op, KernelId kernel) { return op.kernel == kernel; }

// Those whose share of a copy's rate can be given; the names are of backend/kernels.h.
std::string_view name_of_kernel(const Op& op) {
  static const std::pair<KernelId, std::string_view> kNames[] = {
      {KernelId(&Kernels::fill), "fill"},
      {KernelId(&Kernels::copy), "copy"},
      {KernelId(&Kernels::cast), "cast"},
      {KernelId(&Kernels::add), "add"},
      {KernelId(&Kernels::random_normal), "random_normal"},
      {KernelId(&Kernels::embedding), "embedding"},
      {KernelId(&Kernels::embedding_backward), "embedding_backward"},
      {KernelId(&Kernels::layer_norm), "layer_norm"},
      {KernelId(&Kernels::layer_norm_backward), "layer_norm_backward"},
      {KernelId(&Kernels::rms_norm), "rms_norm"},
      {KernelId(&Kernels::rms_norm_backward), "rms_norm_backward"},
      {KernelId(&Kernels::gelu), "gelu"},
      {KernelId(&Kernels::gelu_backward), "gelu_backward"},
      {KernelId(&Kernels::swiglu), "swiglu"},
      {KernelId(&Kernels::swiglu_backward), "swiglu_backward"},
      {KernelId(&Kernels::rope), "rope"},
      {KernelId(&Kernels::rope_backward), "rope_backward"},
      {KernelId(&Kernels::cross_entropy), "cross_entropy"},
      {KernelId(&Kernels::cross_entropy_loss), "cross_entropy_loss"},
      {KernelId(&Kernels::softmax_parts), "softmax_parts"},
      {KernelId(&Kernels::cross_entropy_parts), "cross_entropy_parts"},
      {KernelId(&Kernels::cross_entropy_loss_parts), "cross_entropy_loss_parts"},
      {KernelId(&Kernels::sum_squares), "sum_squares"},
      {KernelId(&Kernels::adamw), "adamw"},
      {KernelId(&Kernels::amax), "amax"},
      {KernelId(&Kernels::quantize), "quantize"},
      {KernelId(&Kernels::quantize_blocks), "quantize_blocks"},
      {KernelId(&Kernels::transpose), "transpose"},
  };
  for (const auto& [id, name] : kNames) {
    if (op.kernel == id) return name;
  }
  return "";
}

// f(log bytes), a straight line between two points; beyond the last its rate stays, before the first its time does.
double interpolate(const google::protobuf::RepeatedPtrField<v1::LinkPoint>& points, double bytes) {
  const v1::LinkPoint& first = points[0];
  if (bytes <= static_cast<double>(first.bytes())) {
    return first.bytes_per_second() * bytes / static_cast<double>(first.bytes());
  }
  for (int i = 1; i < points.size(); ++i) {
    const double low = static_cast<double>(points[i - 1].bytes()), high = static_cast<double>(points[i].bytes());
    if (bytes > high) continue;
    const double part = std::log(bytes / low) / std::log(high / low);
    return points[i - 1].bytes_per_second() * (1 - part) + points[i].bytes_per_second() * part;
  }
  return points[points.size() - 1].bytes_per_second();
}

const google::protobuf::RepeatedPtrField<v1::LinkPoint>& points_of(const v1::LinkRates& links, CommKind kind) {
  switch (kind) {
    case CommKind::kAllReduce:
      return links.all_reduce();
    case CommKind::kAllGather:
    case CommKind::kBroadcast:
      return links.all_gather();
    case CommKind::kReduceScatter:
      return links.reduce_scatter();
    case CommKind::kExchange:
      return links.exchange();
    case CommKind::kSend:
    case CommKind::kRecv:
      return links.send();
  }
  return links.send();
}

}  // namespace

GroupLink link_of(const backend::Group& group, int domain) {
  std::map<int, int> members;
  for (const int rank : group.ranks) ++members[rank / domain];
  const auto size = static_cast<int>(group.ranks.size());
  GroupLink link{.size = size, .in_domain = size, .within = members.size() <= 1};
  for (const auto& [place, count] : members) link.in_domain = std::min(link.in_domain, count);
  return link;
}

double clock_of(const v1::Rates& rates, double busy) {
  if (rates.waiting_power() <= 0) return 1;
  const double most = rates.products().peak_flops() / rates.products().sustained_flops();
  return std::clamp(std::cbrt(1 / (busy + (1 - busy) * rates.waiting_power())), 1.0, std::max(1.0, most));
}

double traffic_of(const Op& op) {
  int64_t ids = 0;
  for (const Access& access : op.accesses) {
    if (access.dtype == DType::kI32 && !access.writes()) ids = access.shape.elements();
  }
  double bytes = 0;
  for (const Access& access : op.accesses) {
    double one = static_cast<double>(access.end - access.begin);
    if (ids > 0 && access.shape.rank() == 2 && access.shape[0] > ids) {
      one *= static_cast<double>(ids) / static_cast<double>(access.shape[0]);
    }
    bytes += one * (access.reads() && access.writes() ? 2 : 1);
  }
  return bytes;
}

double OpCosts::seconds(const Op& op, double clock) const {
  if (op.gate) return 0;
  if (op.comm) return call(op.comm->kind, groups_[op.comm->group], static_cast<double>(op.comm->bytes()));
  if (op.lane.kind != engine::LaneKind::kCompute) return op.cost.bytes / 2 / rates_.host_copy_bytes_per_second();
  return rates_.kernel_seconds() + kernel(op, clock);
}

double OpCosts::kernel(const Op& op, double clock) const {
  if (calls(op, KernelId(&Kernels::linear)) || calls(op, KernelId(&Kernels::linear_gelu)) ||
      calls(op, KernelId(&Kernels::linear_dgrad)) || calls(op, KernelId(&Kernels::linear_wgrad)) ||
      calls(op, KernelId(&Kernels::fp8_product)) || calls(op, KernelId(&Kernels::fp8_wgrad))) {
    return product(op, clock);
  }
  if (calls(op, KernelId(&Kernels::attention))) return attention(op, false, clock);
  if (calls(op, KernelId(&Kernels::attention_backward))) return attention(op, true, clock);
  // Beside what is known of x nobody reads it.
  if (calls(op, KernelId(&Kernels::amax)) && op.accesses.size() == 3) return 0;
  double share = 1;
  const std::string_view name = name_of_kernel(op);
  for (const v1::KernelShare& kernel : rates_.kernels()) {
    if (kernel.kernel() == name) share = kernel.share();
  }
  return traffic_of(op) / (share * rates_.copy_bytes_per_second());
}

double OpCosts::product(const Op& op, double clock) const {
  const v1::ProductRates& rates = rates_.products();
  const Access& a = op.accesses[0];
  const bool eight = backend::is_fp8(a.dtype);
  const Access& b = op.accesses[eight ? 2 : 1];  // Each fp8 operand has its scale behind it.
  const bool in_blocks = eight && op.accesses[1].shape.elements() > 1;
  const double of_eight = in_blocks && rates.fp8_block_share() > 0 ? rates.fp8_block_share() : rates.fp8_share();
  const double share = eight ? of_eight : a.dtype == DType::kF32 ? rates.fp32_share() : 1;
  const double rows = static_cast<double>(a.shape.rows()), in = static_cast<double>(a.shape.cols());
  const double other_rows = static_cast<double>(b.shape.rows()), other_columns = static_cast<double>(b.shape.cols());
  const double bytes = traffic_of(op);
  const bool fp8_wgrad = calls(op, KernelId(&Kernels::fp8_wgrad));
  if (fp8_wgrad || calls(op, KernelId(&Kernels::linear_wgrad))) {
    // fp8 operands come transposed, so that both have the depth in their columns.
    const double seconds = fp8_wgrad ? product(rows, other_rows, in, share, bytes, clock)
                                     : product(in, other_columns, rows, share, bytes, clock);
    const bool adds = !op.switches.empty() && op.switches[0] == '1';
    return adds ? seconds / rates.accumulate_share() : seconds;
  }
  if (calls(op, KernelId(&Kernels::linear_dgrad))) return product(rows, other_columns, in, share, bytes, clock);
  const double seconds = product(rows, other_rows, in, share, bytes, clock);
  if (!calls(op, KernelId(&Kernels::linear_gelu))) return seconds;
  // The second result is written behind the product's last tile, which hides none of it.
  const Access& after = op.accesses.back();
  return seconds + static_cast<double>(after.end - after.begin) / rates_.copy_bytes_per_second();
}

double OpCosts::product(double rows, double columns, double depth, double share, double bytes, double clock) const {
  const v1::ProductRates& rates = rates_.products();
  const double flops = 2 * rows * columns * depth;
  const double sustained = flops * (1 + rates.depth_overhead() / depth) / (rates.sustained_flops() * share * clock);
  // Whole rounds of tiles over the units. Depth may be cut for more tiles.
  const double tiles = std::ceil(rows / rates.tile_rows()) * std::ceil(columns / rates.tile_columns());
  const double a_tile =
      2.0 * rates.tile_rows() * rates.tile_columns() * depth * rates.units() / (rates.peak_flops() * share);
  double rounds = std::ceil(tiles / rates.units());
  for (double pieces = 2; depth / pieces >= rates.least_split_depth(); pieces *= 2) {
    rounds = std::min(rounds, std::ceil(tiles * pieces / rates.units()) / pieces);
  }
  return rates.start_seconds() + std::max({sustained, rounds * a_tile, bytes / rates_.copy_bytes_per_second()});
}

double OpCosts::attention(const Op& op, bool backward, double clock) const {
  // The statistics of the softmax have the shape: f32 [batch, heads, sequence].
  engine::Shape lse;
  for (const Access& access : op.accesses) {
    if (access.shape.rank() == 3 && access.dtype == DType::kF32) lse = access.shape;
  }
  const auto sequence = static_cast<double>(lse[2]);
  const double of_forward = op.cost.flops / (backward ? 2.5 : 1);
  const double head_dim = of_forward / (2.0 * static_cast<double>(lse[0] * lse[1]) * sequence * sequence);
  const auto& entries = rates_.attention();
  const v1::AttentionRate& rate =
      *std::min_element(entries.begin(), entries.end(), [&](const v1::AttentionRate& a, const v1::AttentionRate& b) {
        return std::abs(a.head_dim() - head_dim) < std::abs(b.head_dim() - head_dim);
      });
  const double peak = backward ? rate.backward_flops() : rate.forward_flops();
  const double half = backward ? rate.backward_half_length() : rate.forward_half_length();
  return std::max(op.cost.flops * (1 + half / sequence) / (peak * clock),
                  traffic_of(op) / rates_.copy_bytes_per_second());
}

// In a ring over several domains each domain sends by the adapters of all its members, if its own links keep up.
double OpCosts::bus(CommKind kind, const GroupLink& group, double bytes) const {
  const auto in_step = [&](const v1::LinkRates& links) {
    return interpolate(points_of(links, kind), bytes) * (links.step_share() > 0 ? links.step_share() : 1);
  };
  if (group.within) return in_step(rates_.domain());
  const double network = in_step(rates_.network()) * group.in_domain;
  return group.in_domain == 1 ? network : std::min(network, in_step(rates_.domain()));
}

double OpCosts::call(CommKind kind, const GroupLink& group, double bytes) const {
  const double n = group.size;
  if (n <= 1) return 0;
  double whole = bytes, factor = 1, rounds = 0;
  if (kind == CommKind::kAllGather) whole = bytes * n;
  if (kind == CommKind::kAllReduce) {
    factor = 2 * (n - 1) / n;
    rounds = 2 * (n - 2);
  } else if (kind == CommKind::kAllGather || kind == CommKind::kReduceScatter || kind == CommKind::kBroadcast) {
    factor = (n - 1) / n;
    rounds = n - 2;
  }
  if (whole <= 0) return 0;
  // Small calls go by trees: as many rounds as the logarithm.
  rounds = std::min(rounds, 2 * std::log2(n));
  return factor * whole / bus(kind, group, whole) + rounds * links(group).latency_seconds();
}

}  // namespace telar::forecast
