// A simulated card is measured, and its own table has to come out.
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "simulator/cluster/cluster.h"
#include "simulator/hardware/kernel_table.h"
#include "simulator/hardware/kernel_tables.h"
#include "simulator/hardware/kernel_time.h"
#include "simulator/hardware/presets.h"
#include "tools/kernel_table/measure.h"

namespace accelerate {
namespace {

using simulator::KernelTable;
using simulator::MathType;

std::string measured_text(const std::string& device) {
  std::string text;
  simulator::Cluster cluster("1x1:" + device, {.numerics = simulator::Numerics::kShapes});
  cluster.run_on_every_rank([&](simulator::Rank&) {
    text = measure_kernel_table({.device = device, .date = "2000-01-01"}).dump();
  });
  return text;
}

TEST(KernelTable, IsThatOfTheSimulatedCard) {
  for (const char* name : {"a100-80", "h100"}) {
    const absl::StatusOr<KernelTable> parsed = simulator::parse_kernel_table(measured_text(name));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const KernelTable &measured = *parsed, &table = *simulator::find_kernel_table(name);
    EXPECT_EQ(measured.device, name);
    EXPECT_EQ(measured.multiprocessors, table.multiprocessors);

    // Memory: the ramp is a hundredth of what these kernels take.
    EXPECT_NEAR(measured.read.value / table.read.value, 1, 0.02);
    EXPECT_NEAR(measured.copy.value / table.copy.value, 1, 0.02);
    EXPECT_NEAR(measured.add.value / table.add.value, 1, 0.02);
    EXPECT_NEAR(measured.memory_ramp_ns.value / table.memory_ramp_ns.value, 1, 0.02);

    // Products, by the model that a simulation uses.
    const simulator::DeviceModel& model = *simulator::find_device(name);
    ASSERT_EQ(measured.products.size(), 80u);
    for (const KernelTable::Product& each : measured.products) {
      const auto expected = simulator::kernel_time(
          model, &table, simulator::product_work(MathType::kBf16, 1, each.m, each.n, each.k));
      EXPECT_NEAR(each.ns / static_cast<double>(expected.ns), 1, 0.01)
          << each.m << "x" << each.n << "x" << each.k;
    }
    EXPECT_NEAR(measured.unaligned.value / table.unaligned.value, 1, 0.05);
    ASSERT_EQ(measured.attention.size(), 2 * 2 * 2 * 6u);
    for (const KernelTable::Attention& line : measured.attention) {
      const auto expected = simulator::kernel_time(
          model, &table,
          simulator::attention_work(
              {.type = MathType::kBf16,
               .causal = line.causal,
               .backward = line.stage == KernelTable::Attention::Stage::kBackward,
               .heads = line.batch * line.heads,
               .queries = line.length,
               .keys = line.length,
               .head_dim = line.head_dim}));
      EXPECT_NEAR(line.ns / static_cast<double>(expected.ns), 1, 0.03)
          << line.head_dim << " " << line.length << " " << line.causal;
    }

    // The host.
    const KernelTable::Host &host = measured.host, &expected = table.host;
    EXPECT_NEAR(host.view_ns.value, expected.view_ns.value, 1);
    EXPECT_NEAR(host.kernel_ns.value, expected.kernel_ns.value, 1);
    EXPECT_NEAR(host.record_ns.value, expected.record_ns.value, 1);
    EXPECT_NEAR(host.node_ns.value, expected.node_ns.value, 100);  // and the gradient of the leaf
    EXPECT_NEAR(host.product_ns.value, expected.product_ns.value, 1);
    EXPECT_NEAR(host.tensor_ns.value, expected.tensor_ns.value, 1);
    EXPECT_NEAR(measured.pinned.value / table.pinned.value, 1, 0.001);
    EXPECT_NEAR(measured.pageable.value / table.pageable.value, 1, 0.001);
  }
}

TEST(KernelTable, NeedsTheNameOfAKnownDevice) {
  const auto error_of = [](const MeasureOptions& options, const char* cluster = "1x1:h100") {
    std::string error;
    simulator::Cluster(cluster).run_on_every_rank([&](simulator::Rank&) {
      try {
        measure_kernel_table(options);
      } catch (const c10::ValueError& thrown) {
        error = thrown.what_without_backtrace();
      }
    });
    return error;
  };
  EXPECT_THAT(error_of({.device = "h1000"}), ::testing::HasSubstr("\"h1000\" is not a device"));
  EXPECT_THAT(error_of({.device = "v100"}), ::testing::HasSubstr("how many multiprocessors"));
  EXPECT_THAT(error_of({.device = "h100"}, "1x1"), ::testing::HasSubstr("computes on the CPU"));
}

}  // namespace
}  // namespace accelerate
