// Regressions of ten kinds, each alone in a training program: what accelerate perf says of it
// first.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/platform/child.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Regression {
  const char* name;
  const char* metric;
  const char* cause;
};

void PrintTo(const Regression& regression, std::ostream* out) { *out << regression.name; }

class Planted : public ::testing::TestWithParam<Regression> {
 protected:
  static void SetUpTestSuite() {
    configure("");
    const ChildResult accepted = perf("accept");
    ASSERT_EQ(accepted.exit_code, 0) << accepted.output;
  }

  static std::string folder() { return std::getenv("TEST_TMPDIR"); }

  static void configure(const std::string& plant) {
    std::ofstream(folder() + "/perf.yaml")
        << "workloads:\n  - name: planted\n    program: integration_tests/perf/planted "
           "--checkpoint {scratch}"
        << (plant.empty() ? "" : " --plant ") << plant
        << "\n    options: --mixed_precision bf16 --simulate_numerics shapes "
           "--simulate_unknown_values nan\n    clusters: 1x4:h100\n";
  }

  static ChildResult perf(const std::string& what, const std::string& environment = "") {
    return run_shell(environment + " launch/launcher perf " + what + " --config " + folder() +
                     "/perf.yaml")
        .value();
  }
};

TEST_P(Planted, IsNamedInTheFirstLine) {
  configure(GetParam().name);
  const ChildResult found = perf("compare");
  EXPECT_EQ(found.exit_code, 1);
  // Behind the progress, the note that the command is another one, and the table's head.
  const size_t head = found.output.find("most of it\n");
  ASSERT_NE(head, std::string::npos) << found.output;
  const size_t row = head + 11;
  EXPECT_THAT(found.output.substr(row, found.output.find('\n', row) - row),
              AllOf(HasSubstr(GetParam().metric), HasSubstr(GetParam().cause)))
      << found.output;
}

INSTANTIATE_TEST_SUITE_P(
    Regressions, Planted,
    ::testing::Values(Regression{"all_reduce", "time/step", "all_reduce"},
                      Regression{"buckets", "time/step", "all_reduce of 4"},
                      Regression{"allocation", "work/allocated_bytes", "the program itself"},
                      Regression{"activation", "memory/", "mostly in layer1.linear"},
                      Regression{"synchronisation", "time/step", "aten::_local_scalar_dense"},
                      Regression{"fp32", "time/step", "mostly in layer2.linear"},
                      Regression{"loader", "time/step", "copy to"},
                      Regression{"unfused", "time/step", "aten::"},
                      Regression{"overlap", "time/step", "on the critical path"},
                      Regression{"checkpoint", "time/run", "sync"}),
    [](const auto& info) { return info.param.name; });

// Tolerances are of the metrics that launch/perf/metrics.cc lists.
TEST_F(Planted, ACleanTreeIsAsBeforeAndEachMetricCanHaveATolerance) {
  configure("");
  const auto baseline = nlohmann::json::parse(std::ifstream(folder() + "/perf/planted.json"));
  const nlohmann::json& metrics = baseline.at("clusters").at("1x4:h100").at("metrics");
  std::ofstream config(folder() + "/perf.yaml", std::ios::app);
  config << "tolerances:\n";
  for (const auto& [name, value] : metrics.items()) {
    config << "  " << name << ": 0\n";
  }
  config.close();
  const ChildResult same = perf("compare");
  EXPECT_EQ(same.exit_code, 0) << same.output;
}

TEST_F(Planted, RunsInOneProcess) {
  const ChildResult ended = run_shell(
                                "launch/launcher simulate 1x1:h100 --simulate_numerics shapes "
                                "--simulate_unknown_values nan integration_tests/perf/planted")
                                .value();
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
}

TEST_F(Planted, SettingsOfWhoeverComparesDoNotCount) {
  configure("");
  const std::string config = folder() + "/config/accelerate-cpp";
  std::filesystem::create_directories(config);
  std::ofstream(config + "/default_config.yaml") << "distributed_type: FSDP\n";
  const ChildResult same =
      perf("compare", "XDG_CONFIG_HOME=" + folder() + "/config ACCELERATE_USE_FSDP=true");
  EXPECT_EQ(same.exit_code, 0) << same.output;
}

TEST_F(Planted, ABaselineThatCannotBeReadIsNamed) {
  configure("");
  std::filesystem::create_directories(folder() + "/torn");
  std::ofstream(folder() + "/torn/planted.json") << "{";
  const ChildResult found = perf("compare --baselines " + folder() + "/torn --json /dev/null");
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_THAT(found.output, AllOf(HasSubstr("torn/planted.json: it is not JSON"),
                                  HasSubstr("to take these as the baseline")));
}

TEST_F(Planted, NothingIsTakenFromAProgramThatFails) {
  std::ofstream(folder() + "/perf.yaml")
      << "workloads: [{name: planted, program: integration_tests/perf/planted --bad, clusters: "
         "1x4:h100}]\n";
  const ChildResult found = perf("compare");
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_THAT(found.output, AllOf(HasSubstr("--bad"), Not(HasSubstr("libtorch is unknown")),
                                  Not(HasSubstr("to take these as the baseline"))));
}

}  // namespace
}  // namespace accelerate
