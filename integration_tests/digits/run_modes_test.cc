// The same binary as two real processes over Gloo and as two simulated ranks: the same bits.
// One shape each, which is that of the processes.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/child.h"

namespace accelerate {
namespace {

constexpr char kLaunch[] = "launch/accelerate launch ";
constexpr char kProgram[] =
    " integration_tests/digits/losses accelerate/examples/digits/digits.safetensors";

ChildResult run(const std::string& command) { return run_shell(command).value(); }

// What is behind "loss " or "count " on each line, whatever the launcher puts before it.
std::vector<std::string> told(const std::string& text, const std::string& word) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(word);
    if (at != std::string::npos) found.push_back(line.substr(at + word.size()));
  }
  return found;
}

std::vector<std::string> losses(const std::string& text) {
  std::vector<std::string> found = told(text, "loss 0x");
  for (std::string& each : found) each.insert(0, "0x");
  return found;
}

TEST(RunModes, TwoProcessesEqualTwoSimulatedRanksBitForBit) {
  const ChildResult real = run(std::string(kLaunch) + "--num_processes 2" + kProgram);
  ASSERT_EQ(real.exit_code, 0) << real.output;
  const ChildResult simulated = run(std::string(kLaunch) + "--simulate 1x2" + kProgram);
  ASSERT_EQ(simulated.exit_code, 0) << simulated.output;
  ASSERT_EQ(losses(real.output).size(), 10) << real.output;
  EXPECT_EQ(losses(real.output), losses(simulated.output));
  // Dropout draws differ by rank and step: a constant would pass for equal.
  EXPECT_NE(losses(real.output)[0], losses(real.output)[9]);
}

// The simulator takes no operator and no collective away, and adds none.
TEST(RunModes, TwoProcessesCallTheSameOperatorsAndCollectivesAsTwoSimulatedRanks) {
  const ChildResult real = run(std::string(kLaunch) + "--num_processes 2" + kProgram + " counts");
  ASSERT_EQ(real.exit_code, 0) << real.output;
  const ChildResult simulated = run(std::string(kLaunch) + "--simulate 1x2" + kProgram + " counts");
  ASSERT_EQ(simulated.exit_code, 0) << simulated.output;
  const std::vector<std::string> counts = told(real.output, "count ");
  EXPECT_EQ(counts, told(simulated.output, "count "));
  EXPECT_THAT(counts, ::testing::Contains(::testing::StartsWith("aten::addmm ")));
  EXPECT_THAT(counts, ::testing::Contains(::testing::StartsWith("c10d::allreduce_ ")));
}

// Shards and replicas of them train as plain replicas.
TEST(RunModes, TwoReplicasOfTwoShardsTrainAsFourRanks) {
  const ChildResult plain = run(std::string(kLaunch) + "--simulate 1x4:h100" + kProgram);
  ASSERT_EQ(plain.exit_code, 0) << plain.output;
  const ChildResult mesh =
      run(std::string(kLaunch) +
          "--simulate 1x4:h100 --use_parallelism_config --parallelism_config_dp_replicate_size 2 "
          "--parallelism_config_dp_shard_size 2" +
          kProgram);
  ASSERT_EQ(mesh.exit_code, 0) << mesh.output;
  const std::vector<std::string> expected = losses(plain.output);
  const std::vector<std::string> got = losses(mesh.output);
  ASSERT_EQ(expected.size(), 10) << plain.output;
  ASSERT_EQ(got.size(), 10) << mesh.output;
  for (size_t step = 0; step < expected.size(); ++step) {
    // Sums over two and over four ranks are rounded differently.
    EXPECT_NEAR(std::stod(got[step]), std::stod(expected[step]), 1e-6) << "step " << step;
  }
}

TEST(RunModes, SaysHowToRepeatAFailedSimulation) {
  const ChildResult failed = run(std::string(kLaunch) +
                                 "--simulate 1x2 --simulate_seed 5 integration_tests/digits/losses "
                                 "no_such_file");
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_NE(failed.output.find("no_such_file"), std::string::npos) << failed.output;
  EXPECT_NE(failed.output.find("accelerate launch --simulate 1x2 --simulate_seed 5"),
            std::string::npos)
      << failed.output;
}

TEST(RunModes, SaysHowToRepeatAFailedSimulationOfShapes) {
  const ChildResult failed =
      run(std::string(kLaunch) +
          "--simulate 1x2:h100 --simulate_numerics shapes --simulate_unknown_values nan "
          "integration_tests/digits/losses no_such_file");
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_NE(failed.output.find("accelerate launch --simulate 1x2:h100 --simulate_seed 0 "
                               "--simulate_numerics shapes --simulate_unknown_values nan"),
            std::string::npos)
      << failed.output;
}

TEST(RunModes, SaysHowToRepeatAFailedSimulationOfAMesh) {
  const ChildResult failed =
      run(std::string(kLaunch) +
          "--simulate 1x4:h100 --mixed_precision bf16 --use_parallelism_config "
          "--parallelism_config_dp_replicate_size 2 --parallelism_config_dp_shard_size 2 "
          "integration_tests/digits/losses no_such_file");
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_NE(failed.output.find("accelerate launch --simulate 1x4:h100 --simulate_seed 0 "
                               "--mixed_precision bf16 --use_parallelism_config "
                               "--parallelism_config_dp_replicate_size 2 "
                               "--parallelism_config_dp_shard_size 2 "
                               "integration_tests/digits/losses"),
            std::string::npos)
      << failed.output;
}

TEST(RunModes, RefusesToFoldRanksThatHaveValues) {
  const ChildResult real =
      run(std::string(kLaunch) + "--simulate 1x2:h100 --simulate_fold" + kProgram);
  EXPECT_EQ(real.exit_code, 2) << real.output;
  EXPECT_NE(real.output.find("add --simulate_numerics shapes"), std::string::npos) << real.output;
}

TEST(RunModes, RefusesShapesOfNothing) {
  const ChildResult unknown = run(std::string("ACCELERATE_SIMULATE_NUMERICS=some ") + kLaunch +
                                  "--simulate 1x2:h100" + kProgram);
  EXPECT_NE(unknown.exit_code, 0);
  EXPECT_NE(unknown.output.find("ACCELERATE_SIMULATE_NUMERICS=\"some\" is neither real nor shapes"),
            std::string::npos)
      << unknown.output;
  const ChildResult no_device =
      run(std::string(kLaunch) + "--simulate 1x2 --simulate_numerics shapes" + kProgram);
  EXPECT_NE(no_device.exit_code, 0);
  EXPECT_NE(no_device.output.find("as in --simulate 2x4:h100"), std::string::npos)
      << no_device.output;
}

TEST(RunModes, RefusesANumberOfSlicesThatIsNone) {
  const ChildResult refused = run(std::string("ACCELERATE_SIMULATE_REPORT_SLICES=many ") + kLaunch +
                                  "--simulate 1x2" + kProgram);
  EXPECT_NE(refused.exit_code, 0) << refused.output;
  EXPECT_NE(
      refused.output.find("ACCELERATE_SIMULATE_REPORT_SLICES=\"many\" is not an unsigned number"),
      std::string::npos)
      << refused.output;
}

// The model and its optimizer take some MiB on each rank, however many there are.
TEST(RunModes, SweepsOverClusters) {
  const ChildResult sweep =
      run("launch/accelerate simulate --sweep "
          "'1x1:h100;1x2:h100;1x2:h100,mem=1MiB,efficiency=ideal;1x2' "
          "--csv $TEST_TMPDIR/sweep.csv" +
          std::string(kProgram));
  EXPECT_EQ(sweep.exit_code, 0) << sweep.output;
  std::vector<std::vector<std::string>> rows;
  std::ifstream csv(std::string(std::getenv("TEST_TMPDIR")) + "/sweep.csv");
  for (std::string line; std::getline(csv, line);) {
    // The clusters' commas are within quotation marks.
    const size_t quoted = line.rfind('"');
    std::stringstream rest(line.substr(quoted == std::string::npos ? 0 : quoted));
    std::vector<std::string>& cells = rows.emplace_back();
    for (std::string cell; std::getline(rest, cell, ',');) cells.push_back(cell);
  }
  ASSERT_EQ(rows.size(), 5) << sweep.output;
  EXPECT_EQ(rows[1][3], "yes");
  EXPECT_EQ(rows[2][3], "yes");
  EXPECT_EQ(rows[3][3], "no");
  EXPECT_NE(sweep.output.find("out of memory"), std::string::npos) << sweep.output;
  EXPECT_EQ(rows[4][3], "yes");
  EXPECT_EQ(rows[4][5], "") << "no hardware, no time";
  // Two ranks divide each batch, and exchange gradients.
  const double seconds = std::stod(rows[1][5]);
  EXPECT_GT(std::stod(rows[2][5]), seconds);
  const double samples = std::stod(rows[1][6]) * seconds;
  EXPECT_NEAR(samples, 64, 2);
  // Steps wait for each other, so their mean is not the median.
  EXPECT_NEAR(std::stod(rows[2][6]) * std::stod(rows[2][5]), samples, 2);
  EXPECT_EQ(rows[1][10], "0.0");
  EXPECT_GT(std::stod(rows[2][10]), 0);
  EXPECT_GT(std::stod(rows[1][8]), 0) << "MFU";
  EXPECT_EQ(rows[1][8], rows[1][9]) << "nothing is computed again";
}

// What the program costs is the same in each run, and a change of it is seen.
TEST(RunModes, ComparesWhatItCostsWithABaseline) {
  const std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/perf";
  std::filesystem::create_directories(folder);
  const auto configure = [&](const std::string& arguments) {
    std::ofstream(folder + "/perf.yaml") << "workloads:\n  - name: digits\n    program:" << kProgram
                                         << arguments << "\n    clusters: [2x2:h100, 1x1:h200]\n";
  };
  const auto perf = [&](const std::string& what) {
    return run("launch/accelerate perf " + what + " --config " + folder + "/perf.yaml");
  };
  configure("");
  const ChildResult missing = perf("compare");
  EXPECT_EQ(missing.exit_code, 1) << missing.output;
  EXPECT_NE(missing.output.find("digits has no baseline"), std::string::npos) << missing.output;
  EXPECT_EQ(perf("accept").exit_code, 0);
  const ChildResult recorded = perf("record --out " + folder + "/again");
  EXPECT_EQ(recorded.exit_code, 0) << recorded.output;
  const auto content = [](const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  EXPECT_EQ(content(folder + "/again/digits.json"), content(folder + "/perf/digits.json"));
  EXPECT_NE(content(folder + "/perf/digits.json").find("\"libtorch\""), std::string::npos);
  const ChildResult same = perf("compare --results " + folder + "/again");
  EXPECT_EQ(same.exit_code, 0) << same.output;
  configure("\n    options: --mixed_precision bf16");
  const ChildResult changed = perf("compare --markdown " + folder + "/changes.md");
  EXPECT_EQ(changed.exit_code, 1) << changed.output;
  EXPECT_NE(changed.output.find("aten::copy_: 230 calls instead of 10"), std::string::npos)
      << changed.output;
  EXPECT_NE(changed.output.find("accelerate perf accept --config "), std::string::npos);
  EXPECT_NE(content(folder + "/changes.md").find("| digits | 1x1:h200 |"), std::string::npos);
  configure("no_such_file");
  const ChildResult failed = perf("compare");
  EXPECT_EQ(failed.exit_code, 1) << failed.output;
  for (const char* cluster : {"2x2:h100", "1x1:h200"}) {
    const std::string line =
        std::string("digits on ") + cluster + ": the program failed with exit code";
    EXPECT_NE(failed.output.find(line), std::string::npos) << failed.output;
  }
  EXPECT_EQ(failed.output.find("was not measured"), std::string::npos) << failed.output;
}

TEST(RunModes, TurnsOffADetectorByName) {
  const std::string leaks = std::string(kProgram) + " leak";
  const ChildResult detected = run(std::string(kLaunch) + "--simulate 1x2:h100" + leaks);
  EXPECT_EQ(detected.exit_code, 1) << detected.output;
  EXPECT_EQ(detected.output.find("--no_detect"), std::string::npos) << detected.output;
  const ChildResult ignored =
      run(std::string(kLaunch) + "--simulate 1x2:h100 --no-detect leaks,races" + leaks);
  EXPECT_EQ(ignored.exit_code, 0) << ignored.output;
  const ChildResult failed =
      run(std::string(kLaunch) + "--simulate 1x2:h100 --no_detect races,drift" + leaks);
  EXPECT_NE(failed.output.find("--simulate_seed 0 --no_detect races,drift "), std::string::npos)
      << failed.output;
  const ChildResult unknown = run(std::string("ACCELERATE_SIMULATE_NO_DETECT=leak ") + kLaunch +
                                  "--simulate 1x2:h100" + kProgram);
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.output.find("\"leak\" is not races, leaks or drift"), std::string::npos)
      << unknown.output;
}

TEST(RunModes, RepeatsARunWithEachSeed) {
  const std::string directory = std::string(std::getenv("TEST_TMPDIR")) + "/seeds";
  const ChildResult done = run(std::string(kLaunch) + "--simulate 1x2:h100 --seeds 3:5 --report " +
                               directory + kProgram);
  EXPECT_EQ(done.exit_code, 0) << done.output;
  EXPECT_NE(done.output.find("2 seeds, none failed"), std::string::npos) << done.output;
  for (const char* seed : {"3", "4"}) {
    std::stringstream summary;
    summary << std::ifstream(directory + "/seed_" + seed + "/summary.json").rdbuf();
    EXPECT_NE(summary.str().find(std::string("\"seed\": \"") + seed), std::string::npos)
        << summary.str();
  }
}

TEST(RunModes, SaysThatAReportWithoutHardwareHasNoTimes) {
  const std::string directory = std::string(std::getenv("TEST_TMPDIR")) + "/report";
  for (const bool hardware : {false, true}) {
    const ChildResult done =
        run(std::string(kLaunch) + "--simulate " + (hardware ? "1x2:h100" : "1x2") + " --report " +
            directory + kProgram);
    ASSERT_EQ(done.exit_code, 0) << done.output;
    EXPECT_EQ(done.output.find("time is not modelled") != std::string::npos, !hardware)
        << done.output;
    EXPECT_NE(done.output.find("report: " + directory + "/report.html"), std::string::npos)
        << done.output;
    for (const char* figure : {"virtual time ", "peak memory ", "communication "}) {
      EXPECT_EQ(done.output.find(figure) != std::string::npos, hardware) << done.output;
    }
    std::stringstream summary;
    summary << std::ifstream(directory + "/summary.json").rdbuf();
    EXPECT_NE(
        summary.str().find(hardware ? "\"time_is_modelled\": true" : "\"time_is_modelled\": false"),
        std::string::npos)
        << summary.str();
  }
}

}  // namespace
}  // namespace accelerate
