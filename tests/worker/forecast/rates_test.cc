#include "worker/forecast/rates.h"

#include <gmock/gmock.h>

namespace telar::forecast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RatesTest, BuiltInRatesAreWhole) {
  EXPECT_THAT(built_in_rates(), ElementsAre("h200", "cpu"));
  for (const std::string& name : built_in_rates()) {
    const auto rates = find_rates(name);
    ASSERT_TRUE(rates.ok());
    EXPECT_TRUE(check_rates(*rates).ok()) << name << ": " << check_rates(*rates);
  }
}

TEST(RatesTest, DevicesAreKnownByTheirDriversName) {
  EXPECT_EQ(rates_of_model("NVIDIA H200")->name(), "h200");
  EXPECT_THAT(std::string(rates_of_model("NVIDIA B200").status().message()), HasSubstr("NVIDIA B200"));
}

TEST(RatesTest, WhatCannotBeIsNamed) {
  const auto problem = [](auto change) {
    v1::Rates rates = *find_rates("h200");
    change(rates);
    return std::string(check_rates(rates).message());
  };
  EXPECT_THAT(problem([](v1::Rates& rates) { rates.mutable_products()->clear_sustained_flops(); }),
              HasSubstr("rates.products.sustained_flops: 0 must be above 0"));
  EXPECT_THAT(problem([](v1::Rates& rates) { rates.mutable_kernels(0)->set_share(1.5); }),
              HasSubstr("rates.kernels['layer_norm'].share: 1.5"));
  EXPECT_THAT(problem([](v1::Rates& rates) { rates.mutable_domain()->mutable_all_gather(1)->set_bytes(1); }),
              HasSubstr("rates.domain.all_gather.bytes: 1 must be above that of the point before"));
  EXPECT_THAT(problem([](v1::Rates& rates) { rates.mutable_network()->clear_send(); }),
              HasSubstr("rates.network.send: has no points"));
  EXPECT_THAT(problem([](v1::Rates& rates) { rates.set_reserved_bytes(rates.memory_bytes()); }),
              HasSubstr("rates.memory_bytes"));
}

TEST(RatesTest, AClusterIsCompleted) {
  v1::ClusterShape cluster;
  EXPECT_THAT(std::string(complete_cluster(cluster).message()), HasSubstr("cluster.nodes: 0"));
  cluster.set_nodes(2);
  ASSERT_TRUE(complete_cluster(cluster).ok());
  EXPECT_EQ(cluster.devices(), 8u);
  EXPECT_EQ(cluster.domain(), 8u);
  EXPECT_EQ(cluster.rates().name(), "h200");
  cluster.clear_rates();
  cluster.set_gpu("h2oo");
  EXPECT_THAT(std::string(complete_cluster(cluster).message()),
              HasSubstr("cluster.gpu: no rates are built in for 'h2oo'"));
}

TEST(RatesTest, MeasuredSectionsReplaceThoseOfADevice) {
  v1::ClusterShape cluster;
  cluster.set_nodes(2);
  *cluster.mutable_network() = find_rates("cpu")->domain();
  cluster.mutable_network()->set_slowdown(0.125);
  ASSERT_TRUE(complete_cluster(cluster).ok());
  EXPECT_EQ(cluster.rates().network().slowdown(), 0.125);
  EXPECT_EQ(cluster.rates().domain().all_reduce_size(), find_rates("h200")->domain().all_reduce_size());
  EXPECT_FALSE(cluster.has_network());
  cluster.mutable_links()->set_origin(v1::MEASURED);
  EXPECT_THAT(std::string(complete_cluster(cluster).message()), HasSubstr("rates.domain.all_reduce: has no points"));
}

TEST(RatesTest, BuiltInRatesSayWhereTheyAreFrom) {
  EXPECT_EQ(find_rates("h200")->domain().origin(), v1::MEASURED);
  for (const std::string& name : built_in_rates()) {
    EXPECT_EQ(find_rates(name)->origin(), v1::MEASURED);
    EXPECT_EQ(find_rates(name)->network().origin(), v1::DATA_SHEET);
  }
}

}  // namespace
}  // namespace telar::forecast
