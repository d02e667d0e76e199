// The same binary as two real processes over Gloo and as two simulated ranks: the same bits.
// One shape each, which is that of the processes.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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

// The simulator takes no operator and no collective away, and adds none.
TEST(RunModes, TwoProcessesEqualTwoSimulatedRanksBitForBitAndCallTheSame) {
  const ChildResult real = run(std::string(kLaunch) + "--num_processes 2" + kProgram + " counts");
  ASSERT_EQ(real.exit_code, 0) << real.output;
  const ChildResult simulated = run(std::string(kLaunch) + "--simulate 1x2" + kProgram + " counts");
  ASSERT_EQ(simulated.exit_code, 0) << simulated.output;
  ASSERT_EQ(losses(real.output).size(), 10) << real.output;
  EXPECT_EQ(losses(real.output), losses(simulated.output));
  // Dropout draws differ by rank and step: a constant would pass for equal.
  EXPECT_NE(losses(real.output)[0], losses(real.output)[9]);
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

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A home folder, in which lines of shell run that begin with `accelerate`.
class Home {
 public:
  explicit Home(const std::string& name)
      : folder_(std::string(std::getenv("TEST_TMPDIR")) + "/" + name) {
    std::filesystem::create_directories(folder_ + "/bin");
    std::filesystem::remove(folder_ + "/bin/accelerate");
    std::filesystem::create_symlink(std::filesystem::absolute("launch/accelerate"),
                                    folder_ + "/bin/accelerate");
  }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name)) << text;
  }
  ChildResult sh(const std::string& line) const {
    return run("unset HF_HOME XDG_CONFIG_HOME XDG_CACHE_HOME; export HOME='" + folder_ +
               "' PATH='" + folder_ + "/bin':$PATH; " + line);
  }
  // The summary of a run that ends well.
  std::string summary_of(const std::string& line) const {
    const ChildResult done =
        sh("export ACCELERATE_SIMULATE_REPORT='" + path("report") + "'; " + line);
    EXPECT_EQ(done.exit_code, 0) << line << "\n" << done.output;
    return content(path("report/summary.json"));
  }

 private:
  const std::string folder_;
};

// A default file that says otherwise in all that a simulated run takes from one.
constexpr char kContradiction[] =
    "distributed_type: DEEPSPEED\nmixed_precision: fp16\nuse_cpu: true\nnum_processes: 4\n"
    "deepspeed_config:\n  zero_stage: 1\n  gradient_accumulation_steps: 5\n";
constexpr char kOurDefault[] = ".config/accelerate-cpp/default_config.yaml";
constexpr char kPeersDefault[] = ".cache/huggingface/accelerate/default_config.yaml";

// Each way to give settings, and each group of them.
TEST(RunModes, RepeatsARunByTheLineOfItsReportWhateverTheHomeFolderHas) {
  const Home clean("clean");
  const Home other("other");
  other.write(kOurDefault, kContradiction);
  clean.write("fsdp.yaml",
              "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\nfsdp_config:\n"
              "  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_auto_wrap_policy: NO_WRAP\n");
  clean.write("zero.yaml",
              "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
              "  zero_stage: 3\n  gradient_accumulation_steps: 2\n");
  const std::string cluster = "1x2:h100 --simulate_seed 4 ";
  const struct {
    std::string line;
    std::string said;
  } kRuns[] = {
      {"accelerate launch --simulate " + cluster +
           "--use_fsdp --fsdp_version 2 --mixed_precision bf16 --gradient_accumulation_steps 2 "
           "--num_cpu_threads_per_process 2",
       "--mixed_precision bf16 --gradient_accumulation_steps 2 --num_cpu_threads_per_process 2 "
       "--use_fsdp --fsdp_version 2"},
      {"accelerate simulate " + cluster + "--config_file " + clean.path("fsdp.yaml"),
       "--mixed_precision bf16 --use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP "
       "--fsdp_auto_wrap_policy NO_WRAP"},
      {"accelerate simulate " + cluster + "--config_file " + clean.path("zero.yaml"),
       "--gradient_accumulation_steps 2 --use_deepspeed --zero_stage 3"},
      {"ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_ZERO_STAGE=2 OMP_NUM_THREADS=3 "
       "accelerate launch --simulate " +
           cluster,
       "--num_cpu_threads_per_process 3 --use_deepspeed --zero_stage 2"},
      {"accelerate launch --simulate " + cluster +
           "--mixed_precision fp8 --fp8_backend te --fp8_format E4M3 --use_parallelism_config "
           "--parallelism_config_dp_replicate_size 2",
       "--mixed_precision fp8 --use_parallelism_config --fp8_backend te --fp8_format E4M3 "
       "--parallelism_config_dp_replicate_size 2"},
      {"PYTORCH_ALLOC_CONF=expandable_segments:True accelerate simulate " + cluster, ""},
  };
  std::set<std::string> summaries;
  for (const auto& [line, said] : kRuns) {
    const std::string first = clean.summary_of(line + kProgram);
    const nlohmann::json summary = nlohmann::json::parse(first, nullptr, false);
    ASSERT_TRUE(summary.is_object()) << line;
    const std::string repeat = summary.at("repeat_command");
    EXPECT_THAT(repeat, ::testing::HasSubstr(said + (said.empty() ? "" : " --no_default_config")));
    EXPECT_EQ(first, other.summary_of(repeat)) << line << "\n" << repeat;
    EXPECT_TRUE(summaries.insert(first).second) << line << " has no effect";
  }
  // Without the launcher, whose flags then take the place of the variables.
  const auto figures = [](const std::string& text) {
    nlohmann::json summary = nlohmann::json::parse(text, nullptr, false);
    if (summary.is_object()) summary.erase("repeat_command");
    return summary;
  };
  const std::string direct = clean.summary_of(
      "ACCELERATE_SIMULATE=1x2:h100 ACCELERATE_MIXED_PRECISION=bf16" + std::string(kProgram));
  const std::string repeat = nlohmann::json::parse(direct).at("repeat_command");
  EXPECT_EQ(figures(direct), figures(other.summary_of(repeat))) << repeat;
}

// A tutorial's command, before and after `accelerate config default` and on a laptop that has HF
// Accelerate's file.
TEST(RunModes, SimulatesTheSameWhateverMachineTheHomeFolderDescribes) {
  const Home home("home");
  const std::string line = std::string("accelerate simulate 1x2:h100 ") + kProgram;
  const std::string small =
      std::string("accelerate launch --simulate 1x1:h100,mem=1MiB,efficiency=ideal ") + kProgram;
  const std::string before = home.summary_of(line);
  EXPECT_THAT(home.sh(small).output, ::testing::HasSubstr("out of memory"));
  EXPECT_EQ(home.sh("accelerate config default").exit_code, 0);
  ASSERT_FALSE(content(home.path(kOurDefault)).empty());
  EXPECT_EQ(home.summary_of(line), before);
  EXPECT_EQ(home.summary_of("ACCELERATE_USE_CPU=true ACCELERATE_TORCH_DEVICE=cpu " + line), before);
  EXPECT_EQ(
      home.summary_of("ACCELERATE_USE_CPU=1 ACCELERATE_SIMULATE=1x2:h100" + std::string(kProgram)),
      before)
      << "without the launcher";
  EXPECT_THAT(home.sh(small).output, ::testing::HasSubstr("out of memory"));
  std::filesystem::remove(home.path(kOurDefault));
  home.write(kPeersDefault,
             "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nuse_cpu: true\n"
             "num_machines: 2\nnum_processes: 3\ngpu_ids: '0'\nmixed_precision: 'no'\n");
  EXPECT_EQ(home.summary_of(line), before);
}

TEST(RunModes, SaysNothingOfAReportThatIsQuiet) {
  const Home home("quiet");
  for (const char* cluster : {"1x2", "1x2:h100"}) {
    const ChildResult done = home.sh(std::string("accelerate simulate ") + cluster +
                                     " --quiet --report " + home.path(cluster) + kProgram);
    EXPECT_EQ(done.exit_code, 0);
    EXPECT_EQ(done.output.find("accelerate"), std::string::npos) << done.output;
    EXPECT_FALSE(content(home.path(cluster) + "/summary.json").empty());
  }
}

// As real runs end: a full disk under the output costs the output.
TEST(RunModes, SaysThatTheOutputOfASimulationIsLost) {
  const ChildResult full =
      run(std::string(kLaunch) + "--simulate 1x2" + kProgram + " 2>&1 >/dev/full");
  EXPECT_EQ(full.exit_code, 0) << full.output;
  EXPECT_THAT(full.output,
              ::testing::HasSubstr("cannot write to standard output; the rest of it is "
                                   "lost"));
}

// All that the line tells of a run of shapes on a mesh.
TEST(RunModes, SaysHowToRepeatAFailedSimulation) {
  const ChildResult failed =
      run(std::string(kLaunch) +
          "--simulate 1x4:h100 --simulate_seed 5 --simulate_numerics shapes "
          "--simulate_unknown_values nan --mixed_precision bf16 --use_parallelism_config "
          "--parallelism_config_dp_replicate_size 2 --parallelism_config_dp_shard_size 2 "
          "integration_tests/digits/losses no_such_file");
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_NE(failed.output.find("no_such_file"), std::string::npos) << failed.output;
  EXPECT_NE(failed.output.find("accelerate launch --simulate 1x4:h100 --simulate_seed 5 "
                               "--simulate_numerics shapes --simulate_unknown_values nan "
                               "--mixed_precision bf16 --use_parallelism_config "
                               "--parallelism_config_dp_replicate_size 2 "
                               "--parallelism_config_dp_shard_size 2 --no_default_config "
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
  EXPECT_EQ(rows[4][3], "unknown") << "no hardware, no memory";
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

// Plans of faults as flags, variables and files; what is wrong with one is said before the program.
TEST(RunModes, TrainsUnderAPlanOfFaults) {
  const auto under = [](const std::string& flags, const std::string& variables = "") {
    return run(variables + kLaunch + "--simulate 1x2 " + flags + kProgram);
  };
  for (const auto& [plan, error] : std::vector<std::pair<std::string, std::string>>{
           {"rank 1 at stap 2: crash", "did you mean step? at character 11"},
           {"rank 7 at step 2: crash", "there is no rank 7: the cluster has 2 ranks"},
           {"rank tp=0 at step 2: crash", "this run has no mesh"}}) {
    const ChildResult refused = under("--faults '" + plan + "'");
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_THAT(refused.output,
                ::testing::AllOf(::testing::HasSubstr(error), ::testing::HasSubstr(plan)));
    EXPECT_EQ(losses(refused.output).size(), 0) << refused.output;
  }
  const std::string folder = std::getenv("TEST_TMPDIR");
  const std::string plan = folder + "/plan.txt", log = folder + "/faults.log";
  std::ofstream(plan) << "# what goes wrong\nrank 1 at step 2: crash\n";
  const std::string death = "rank 1 failed: rank 1 was killed at step 2";
  const ChildResult died = under("--faults @" + plan + " --log " + log);
  EXPECT_EQ(died.exit_code, 1) << died.output;
  EXPECT_THAT(died.output,
              ::testing::AllOf(::testing::HasSubstr(death), ::testing::HasSubstr("@" + plan)));
  const ChildResult by_variable =
      under("", "ACCELERATE_SIMULATE_FAULTS='rank 1 at step 2: crash' ");
  EXPECT_EQ(by_variable.exit_code, 1) << by_variable.output;
  EXPECT_THAT(by_variable.output, ::testing::HasSubstr(death));
  const ChildResult again = under("--replay " + log);
  EXPECT_EQ(again.exit_code, 1) << again.output;
  EXPECT_THAT(again.output,
              ::testing::AllOf(::testing::HasSubstr(death),
                               ::testing::HasSubstr("--faults 'rank 1 at step 2: crash' ")));
  EXPECT_EQ(again.output.find("differs"), std::string::npos) << again.output;
  const ChildResult other = under("--simulate_seed 4 --replay " + log);
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.output, ::testing::HasSubstr("the log is of another seed: \"0\", not \"4\""));
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

// The launcher stops the others when the first one ends, perhaps before rank 0 has said anything.
TEST(RunModes, EachProcessOfAnExampleSaysWhatIsWrongWithItsFlags) {
  constexpr char kDigits[] = "accelerate/examples/digits/digits --epohs 1 2>&1";
  constexpr char kError[] = "unknown option --epohs; did you mean --epochs?";
  const ChildResult second = run(std::string("RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 "
                                             "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 ") +
                                 kDigits);
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.output,
              ::testing::HasSubstr(std::string("accelerate: rank 1 failed: ") + kError));
  const ChildResult alone = run(kDigits);
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.output, ::testing::StartsWith(kError));
  for (const char* how : {"--num_processes 2 ", "--simulate 1x2 "}) {
    const ChildResult launched = run(std::string(kLaunch) + how + kDigits);
    EXPECT_EQ(launched.exit_code, 2) << how;
    const size_t first = launched.output.find(kError);
    ASSERT_NE(first, std::string::npos) << how << launched.output;
  }
}

}  // namespace
}  // namespace accelerate
