#include "worker/forecast/rates.h"

#include <google/protobuf/text_format.h>

#include <cassert>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace telar::forecast {

// Embedded when this is built: the files of rates/.
extern const char* const kRatesTexts[];
extern const size_t kRatesTextsCount;

namespace {

std::vector<v1::Rates> all_rates() {
  std::vector<v1::Rates> all(kRatesTextsCount);
  for (size_t i = 0; i < all.size(); ++i) {
    [[maybe_unused]] const bool parsed = google::protobuf::TextFormat::ParseFromString(kRatesTexts[i], &all[i]);
    assert(parsed);
  }
  return all;
}

absl::Status wrong(const std::string& field, double value, const char* rule) {
  return absl::InvalidArgumentError(absl::StrCat("rates.", field, ": ", value, " ", rule));
}

absl::Status positive(const std::string& field, double value) {
  return value > 0 ? absl::OkStatus() : wrong(field, value, "must be above 0");
}

absl::Status share(const std::string& field, double value) {
  return value > 0 && value <= 1 ? absl::OkStatus() : wrong(field, value, "must be above 0 and at most 1");
}

absl::Status check_points(const std::string& field, const google::protobuf::RepeatedPtrField<v1::LinkPoint>& points) {
  if (points.empty()) return absl::InvalidArgumentError(absl::StrCat("rates.", field, ": has no points"));
  absl::Status status;
  uint64_t last = 0;
  for (const v1::LinkPoint& point : points) {
    status.Update(positive(field + ".bytes_per_second", point.bytes_per_second()));
    if (point.bytes() <= last) {
      status.Update(
          wrong(field + ".bytes", static_cast<double>(point.bytes()), "must be above that of the point before"));
    }
    last = point.bytes();
  }
  return status;
}

absl::Status check_links(const std::string& field, const v1::LinkRates& links) {
  absl::Status status;
  if (links.latency_seconds() < 0) {
    status = wrong(field + ".latency_seconds", links.latency_seconds(), "must not be below 0");
  }
  status.Update(check_points(field + ".all_reduce", links.all_reduce()));
  status.Update(check_points(field + ".all_gather", links.all_gather()));
  status.Update(check_points(field + ".reduce_scatter", links.reduce_scatter()));
  status.Update(check_points(field + ".send", links.send()));
  status.Update(check_points(field + ".exchange", links.exchange()));
  const auto below_one = [&](const char* name, double value) {
    if (value < 0 || value >= 1) status.Update(wrong(field + name, value, "must be at least 0 and below 1"));
  };
  if (links.step_share() < 0 || links.step_share() > 1) {
    status.Update(wrong(field + ".step_share", links.step_share(), "must be from 0 to 1"));
  }
  below_one(".slowdown", links.slowdown());
  below_one(".send_slowdown", links.send_slowdown());
  return status;
}

absl::Status unknown(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("no rates are built in for '", name, "', only for ",
                                          absl::StrJoin(built_in_rates(), ", "),
                                          "; give a cluster file with rates of its own"));
}

}  // namespace

std::vector<std::string> built_in_rates() {
  std::vector<std::string> names;
  for (const v1::Rates& rates : all_rates()) names.push_back(rates.name());
  return names;
}

absl::StatusOr<v1::Rates> find_rates(const std::string& name) {
  for (const v1::Rates& rates : all_rates()) {
    if (rates.name() == name) return rates;
  }
  return unknown(name);
}

absl::StatusOr<v1::Rates> rates_of_model(const std::string& model) {
  for (const v1::Rates& rates : all_rates()) {
    if (absl::StrContains(absl::AsciiStrToLower(model), rates.name())) return rates;
  }
  return unknown(model);
}

absl::Status check_rates(const v1::Rates& rates) {
  absl::Status status;
  if (rates.memory_bytes() <= rates.reserved_bytes()) {
    status = wrong("memory_bytes", static_cast<double>(rates.memory_bytes()), "must be above reserved_bytes");
  }
  const v1::ProductRates& products = rates.products();
  status.Update(positive("products.sustained_flops", products.sustained_flops()));
  status.Update(positive("products.peak_flops", products.peak_flops()));
  status.Update(positive("products.tile_rows", products.tile_rows()));
  status.Update(positive("products.tile_columns", products.tile_columns()));
  status.Update(positive("products.units", products.units()));
  status.Update(positive("products.least_split_depth", products.least_split_depth()));
  status.Update(share("products.accumulate_share", products.accumulate_share()));
  status.Update(share("products.fp32_share", products.fp32_share()));
  status.Update(positive("products.fp8_share", products.fp8_share()));
  if (products.fp8_block_share() < 0) {
    status.Update(wrong("products.fp8_block_share", products.fp8_block_share(), "must not be below 0"));
  }
  if (rates.attention().empty()) status.Update(absl::InvalidArgumentError("rates.attention: has no entry"));
  for (const v1::AttentionRate& rate : rates.attention()) {
    status.Update(positive("attention.forward_flops", rate.forward_flops()));
    status.Update(positive("attention.backward_flops", rate.backward_flops()));
  }
  if (products.start_seconds() < 0) {
    status.Update(wrong("products.start_seconds", products.start_seconds(), "must not be below 0"));
  }
  if (rates.waiting_power() < 0 || rates.waiting_power() > 1) {
    status.Update(wrong("waiting_power", rates.waiting_power(), "must be from 0 to 1"));
  }
  status.Update(positive("copy_bytes_per_second", rates.copy_bytes_per_second()));
  status.Update(positive("host_copy_bytes_per_second", rates.host_copy_bytes_per_second()));
  for (const v1::KernelShare& kernel : rates.kernels()) {
    status.Update(share(absl::StrCat("kernels['", kernel.kernel(), "'].share"), kernel.share()));
  }
  status.Update(check_links("domain", rates.domain()));
  status.Update(check_links("network", rates.network()));
  return status;
}

absl::Status complete_cluster(v1::ClusterShape& cluster) {
  if (cluster.nodes() == 0) return absl::InvalidArgumentError("cluster.nodes: 0 must be above 0");
  if (cluster.devices() == 0) cluster.set_devices(8);
  if (cluster.domain() == 0) cluster.set_domain(cluster.devices());
  if (!cluster.has_rates()) {
    if (cluster.gpu().empty()) cluster.set_gpu("h200");
    auto rates = find_rates(cluster.gpu());
    if (!rates.ok()) return absl::InvalidArgumentError(absl::StrCat("cluster.gpu: ", rates.status().message()));
    *cluster.mutable_rates() = *std::move(rates);
  }
  if (cluster.has_links()) cluster.mutable_rates()->mutable_domain()->Swap(cluster.mutable_links());
  if (cluster.has_network()) cluster.mutable_rates()->mutable_network()->Swap(cluster.mutable_network());
  cluster.clear_links();
  cluster.clear_network();
  return check_rates(cluster.rates());
}

}  // namespace telar::forecast
