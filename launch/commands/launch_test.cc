#include "launch/commands/commands.h"

#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/host_files.h"
#include "launch/settings/settings.h"
#include "launch/testing/launcher_process.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Answer {
  int exit_code = 0;
  std::string out;
  std::string err;
};

// The command as main calls it; nothing is started.
Answer launch(std::vector<std::string> args, const std::string& path = "/nowhere") {
  CLI::App app;
  const RunCommand run = kLaunch.declare(app);
  absl::StatusOr<settings::LaunchWords> words = settings::split_launch_words(app, args);
  if (!words.ok()) return {kExitBadCommandLine, "", std::string(words.status().message())};
  std::reverse(words->options.begin(), words->options.end());
  app.parse(words->options);
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  Invocation invocation{in, out, err, {"HF_HOME=/nowhere", "PATH=" + path}, false, words->program};
  const int exit_code = run(invocation);
  return {exit_code, out.str(), err.str()};
}

TEST(Launch, ShowsThePlan) {
  const Answer answer =
      launch({"--num_processes", "2", "--dry-run", "train", "--help", "--", "-x", ""});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("program: train --help -- -x ''\nranks on this machine: 2\n"));
  EXPECT_EQ(answer.err, "");
}

TEST(Launch, LeavesTheProgramsWordsAsTheyAre) {
  const Answer answer = launch({"--dry_run", "train", "--lrs", "[1,2,3]", "[]", "{}", "%%"});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("program: train --lrs '[1,2,3]' '[]' '{}' %%\n"));
  EXPECT_THAT(launch({"--dry_run", "--", "[train]"}).out, HasSubstr("program: '[train]'\n"));
}

TEST(Launch, ShowsEachSettingAndWhereItCameFrom) {
  const Answer answer = launch({"--print_config", "--num_processes=2"});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("num_processes = 2  (flag: --num_processes)\n"));
  EXPECT_THAT(answer.out, Not(HasSubstr("mixed_precision")));
  EXPECT_THAT(launch({"--print-config=all", "--num_processes=2"}).out,
              HasSubstr("mixed_precision = no  (default)\n"));
}

TEST(Launch, TellsOfAKeyThatStandsTwice) {
  const TemporaryFolder folder;
  const std::string path = folder.path("c.yaml");
  std::ofstream(path) << "distributed_type: MULTI_CPU\nnum_processes: 2\nnum_processes: 3\n";
  const Answer answer = launch({absl::StrCat("--config_file=", path), "--dry_run", "train"});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("ranks on this machine: 3\n"));
  EXPECT_EQ(answer.err,
            absl::StrCat("accelerate launch: note: ", path,
                         ":3: the key num_processes occurs twice; the last one counts\n"));
}

TEST(Launch, HelpHasGroups) {
  CLI::App app;
  const RunCommand run = kLaunch.declare(app);
  EXPECT_EQ(settings::split_launch_words(app, {"--help=fsdp"})->help_group, settings::Group::kFsdp);
  EXPECT_THAT(launch({"--help=fdsp"}).err, HasSubstr("--help=fdsp: expected all, program, "));
  EXPECT_THAT(launch({"--help=fdsp"}).err, HasSubstr("did you mean fsdp?"));
}

TEST(Launch, EndsWithTwoForABadCommandLine) {
  EXPECT_THAT(launch({}).err, HasSubstr("no program given"));
  EXPECT_THAT(launch({"--"}).err, HasSubstr("no program given"));
  EXPECT_THAT(launch({""}).err, HasSubstr("no program given"));
  EXPECT_THAT(launch({"--config_file", "/nowhere/x", "t"}).err, HasSubstr("/nowhere/x"));
  for (std::vector<std::string> args :
       {std::vector<std::string>{}, {"--bogus", "t"}, {"--cpu", "--multi_gpu", "t"}}) {
    EXPECT_EQ(launch(args).exit_code, kExitBadCommandLine);
  }
}

TEST(Launch, RefusesWhatIsNotInThisVersionBeforeAnythingElse) {
  for (const char* look : {"--quiet", "--dry_run", "--print_config"}) {
    const Answer answer = launch({"--downcast_bf16", look, "no_such_program"});
    EXPECT_EQ(answer.exit_code, kExitBadCommandLine) << look;
    EXPECT_THAT(answer.err, StartsWith("accelerate launch: --downcast_bf16 is not in this version; "
                                       "leave it out\n"));
    EXPECT_EQ(answer.out, "");
  }
  const TemporaryFolder folder;
  const std::string path = folder.path("tpu.yaml");
  std::ofstream(path) << "num_processes: 2\ndistributed_type: XLA\ndowncast_bf16: true\n";
  EXPECT_THAT(launch({absl::StrCat("--config_file=", path), "train"}).err,
              HasSubstr("tpu.yaml:3: downcast_bf16: true is not in this version"));
}

// HF Accelerate's questionnaire names them in its file for a plain run without asking for them.
TEST(Launch, TakesFilesThatNameAbsentSettingsWithTheirDefaults) {
  const TemporaryFolder folder;
  const std::string path = folder.path("plain.yaml");
  std::ofstream(path) << "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\n"
                         "downcast_bf16: 'no'\ndynamo_config:\n  dynamo_backend: 'NO'\n"
                         "fsdp_config: {}\nnum_processes: 2\nsame_network: true\nuse_cpu: true\n";
  const Answer answer = launch({absl::StrCat("--config_file=", path), "--dry_run", "train"});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
}

TEST(Launch, NamesTheToolThatIsMissing) {
  const TemporaryFolder folder;
  const std::string path = folder.path("sagemaker.yaml");
  std::ofstream(path) << "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n"
                         "ec2_instance_type: t\niam_role_name: arn:r\nimage_uri: i\n";
  const Answer job = launch({absl::StrCat("--config_file=", path), "train"});
  EXPECT_EQ(job.exit_code, kExitNotFound);
  EXPECT_THAT(job.err, HasSubstr("aws sagemaker create-training-job"));
  EXPECT_THAT(launch({absl::StrCat("--config_file=", path), "--dry_run", "train"}).out,
              StartsWith("{\n  \"TrainingJobName\""));
  EXPECT_EQ(launch({"no_such_program"}).exit_code, kExitNotFound);
}

TEST(Launch, HasAwsStartTheSageMakerJob) {
  const TemporaryFolder folder;
  const std::string said = folder.path("said");
  std::ofstream(folder.path("aws"))
      << "#!/bin/sh\ncase \"$AWS_SECRET_ACCESS_KEY $*\" in\n"
         "*KEY*us-east-1*iam*get-role*--role-name*me*) echo arn:aws:iam::1:role/a/me; exit 0 ;;\n"
         "*iam*get-role*) echo NoSuchEntity >&2; exit 254 ;;\nesac\n"
         "{ echo \"$AWS_ACCESS_KEY_ID $AWS_SECRET_ACCESS_KEY\"; "
         "for w in \"$@\"; do echo \"$w\"; done; } > "
      << said << "\nexit 7\n";
  std::filesystem::permissions(folder.path("aws"), std::filesystem::perms::owner_all);
  const auto run = [&](const std::string& role) {
    const std::string config = folder.path("sagemaker.yaml");
    std::ofstream(config) << "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n"
                             "ec2_instance_type: t\nimage_uri: i\nbase_job_name: night\n"
                             "iam_role_name: "
                          << role << "\n";
    return launch({absl::StrCat("--config_file=", config), "--aws_access_key_id=ID",
                   "--aws_secret_access_key=KEY", "train", "--lr", "0.1"},
                  folder.path());
  };
  const Answer refused = run("you");
  EXPECT_EQ(refused.exit_code, kExitLauncherFailed);
  EXPECT_THAT(refused.err, HasSubstr("iam_role_name: you is not an ARN"));
  EXPECT_THAT(refused.err, HasSubstr("NoSuchEntity"));
  EXPECT_FALSE(std::filesystem::exists(said));
  EXPECT_EQ(run("me").exit_code, 7);
  std::stringstream by_name;
  by_name << std::ifstream(said).rdbuf();
  EXPECT_THAT(by_name.str(), HasSubstr("\"RoleArn\":\"arn:aws:iam::1:role/a/me\""));
  const Answer started = run("arn:aws:iam::1:role/r");
  EXPECT_EQ(started.exit_code, 7) << started.err;
  std::stringstream text;
  text << std::ifstream(said).rdbuf();
  EXPECT_THAT(text.str(), StartsWith("ID KEY\n--region\nus-east-1\nsagemaker\n"
                                     "create-training-job\n--cli-input-json\n"
                                     "{\"TrainingJobName\":\"night-20"));
  EXPECT_THAT(text.str(), HasSubstr("\"ContainerArguments\":[\"--lr\",\"0.1\"]"));
}

TEST(Launch, TellsOfAnOutputThatCannotBeWritten) {
  const std::string launcher = std::getenv("ACCELERATE_LAUNCHER");
  for (const char* command : {"--version", "--help", "launch --print_config", "simulate --list",
                              "launch --dry_run --num_processes 2 train", "env"}) {
    for (const char* output : {">&-", ">/dev/full"}) {
      const ChildResult run =
          run_shell(absl::StrCat("( '", launcher, "' ", command, " ", output, " ) 2>&1")).value();
      EXPECT_EQ(run.exit_code, kExitLauncherFailed) << command << output;
      EXPECT_THAT(run.output,
                  HasSubstr("accelerate: standard output is closed or cannot be written"));
    }
  }
  // A run that has nothing to print is one without output.
  EXPECT_EQ(
      run_shell(absl::StrCat("'", launcher, "' launch --num_processes 2 true >&-"))->exit_code, 0);
}

TEST(Launch, SuggestsTheNameThatWasMeant) {
  const auto run = [](const std::string& words) {
    return run_shell(absl::StrCat("'", std::getenv("ACCELERATE_LAUNCHER"), "' ", words)).value();
  };
  for (const auto& [words, expected] :
       {std::pair("--versio", "accelerate: unknown option --versio; did you mean --version?"),
        {"version", "accelerate: unknown command version; did you mean --version?"},
        {"confg", "accelerate: unknown command confg; did you mean config?"},
        {"simulate 2x4 --sede 1 train", "accelerate simulate: unknown option --sede"},
        {"simulate 2x4:h10 train", "accelerate simulate: --simulate=2x4:h10: bad topology"},
        {"launch --sede 1 train", "accelerate launch: unknown option --sede"}}) {
    EXPECT_EQ(run(words).exit_code, kExitBadCommandLine);
    EXPECT_THAT(run(words).output, HasSubstr(expected));
  }
  const ChildResult help = run("launch --help=fsdp");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, HasSubstr("--fsdp_offload_params BOOL"));
  EXPECT_THAT(help.output, Not(HasSubstr("--num_machines")));
  EXPECT_THAT(run("launch --help=simulation").output, HasSubstr("--seeds FIRST:END"));
}

// The program itself: it looks after processes.
TEST(Launch, StartsTheLinesOfAllWorkersOfAPod) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("gcloud"))
      << "#!/bin/sh\necho \"$2 $3\"\n[ \"$3\" != bad ] || exit 3\n";
  std::filesystem::permissions(folder.path("gcloud"), std::filesystem::perms::owner_all);
  std::ofstream(folder.path("pod.yaml"))
      << "distributed_type: XLA\nnum_processes: 8\ntpu_use_cluster: true\n";
  const auto run = [&](const std::string& workers) {
    return run_shell(absl::StrCat("PATH='", folder.path(), "':$PATH '",
                                  std::getenv("ACCELERATE_LAUNCHER"), "' launch --config_file '",
                                  folder.path("pod.yaml"), "' ", workers, " train"))
        .value();
  };
  const ChildResult both = run("--vm=w0 --vm=w1");
  EXPECT_EQ(both.exit_code, 0) << both.output;
  EXPECT_THAT(both.output, HasSubstr("[rank 0] ssh w0\n"));
  EXPECT_THAT(both.output, HasSubstr("[rank 1] ssh w1\n"));
  EXPECT_EQ(run("--vm=w0 --vm=bad").exit_code, 3);
}

TEST(Launch, RepeatsASimulatedRunWithEachSeed) {
  const TemporaryFolder folder;
  const std::string program = folder.path("train");
  std::ofstream(program)
      << "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; "
         "do echo \"line $i of seed $ACCELERATE_SIMULATE_SEED $1\"; done\n"
         "case $ACCELERATE_SIMULATE_SEED in 4|6) exit 3;; 5) kill -9 $$;; esac\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const Answer some =
      launch({"--simulate", "1x2", "--no-detect=races", "--seeds", "3:8", program, "a b"});
  EXPECT_EQ(some.exit_code, 3);
  EXPECT_THAT(some.out, ::testing::ContainsRegex("seed 3: passed \\([0-9.]+ s\\)\n"
                                                 "seed 4: failed with exit code 3 \\([0-9.]+ s\\)\n"
                                                 "  \\| ... 2 more\n  \\| line 3 of seed 4 a b\n"));
  EXPECT_THAT(some.out, HasSubstr("  | line 22 of seed 5 a b\n"));
  EXPECT_THAT(some.out, HasSubstr("seed 5: ended by signal 9"));
  EXPECT_THAT(some.out, HasSubstr(absl::StrCat(
                            "5 seeds, 3 failed: 4, 5, 6\nrepeat the first: accelerate launch "
                            "--simulate 1x2 --simulate_seed 4 --no_detect races "
                            "--no_default_config ",
                            program, " 'a b'\n")));
  const Answer none = launch({"--simulate=1x2", "--quiet", "--seeds=0:2", program});
  EXPECT_EQ(none.exit_code, 0);
  EXPECT_EQ(none.out, "2 seeds, none failed\n");
  // A log is of one seed.
  std::ofstream(program) << "#!/bin/sh\necho log >\"$ACCELERATE_SIMULATE_LOG\"\n";
  EXPECT_EQ(launch({"--simulate=1x2", "--quiet", "--seeds=0:2", "--log=" + folder.path("run.log"),
                    program})
                .exit_code,
            0);
  for (const char* name : {"run.log.seed_0", "run.log.seed_1"}) {
    EXPECT_TRUE(std::filesystem::exists(folder.path(name))) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path("run.log")));
  const Answer absent = launch({"--simulate=1x2", "--seeds=0:2", "/nowhere/train"});
  EXPECT_EQ(absent.exit_code, kExitNotFound);
  EXPECT_THAT(absent.err, HasSubstr("/nowhere/train"));
  EXPECT_EQ(launch({"--simulate=1x2", "--seeds=5:2", program}).exit_code, kExitBadCommandLine);
}

// The program itself: the run mode's part is the script's.
class SimulatedProgram {
 public:
  explicit SimulatedProgram(const std::string& script) : program_(folder_.path("train")) {
    std::ofstream(program_) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(program_, std::filesystem::perms::owner_all);
  }
  // The launcher with these options and the program behind a line of shell.
  ChildResult run(const std::string& options, const std::string& before = "",
                  const std::string& after = "") const {
    return run_shell(absl::StrCat(before, " '", std::getenv("ACCELERATE_LAUNCHER"), "' ", options,
                                  " '", program_, "' ", after))
        .value();
  }
  std::string path(const std::string& name) const { return folder_.path(name); }

 private:
  const TemporaryFolder folder_;
  const std::string program_;
};

constexpr char kSimulates[] = "echo 1 >$ACCELERATE_SIMULATE_BEGAN; echo ran";

TEST(Simulate, SaysWhereAProgramDoesNotSimulate) {
  const SimulatedProgram silent("echo ran");
  for (const char* how : {"simulate 1x2", "launch --simulate 1x2:h100"}) {
    const ChildResult noted = silent.run(how);
    EXPECT_EQ(noted.exit_code, 0);
    EXPECT_THAT(noted.output, HasSubstr(": note: no simulation took place: the program has to be "
                                        "linked to the simulator"));
    const ChildResult quiet = silent.run(absl::StrCat(how, " --quiet"));
    EXPECT_EQ(quiet.exit_code, 0);
    EXPECT_EQ(quiet.output, "ran\n");
    const ChildResult failed = silent.run(absl::StrCat(how, " --report ", silent.path("r")));
    EXPECT_EQ(failed.exit_code, kExitLauncherFailed);
    EXPECT_THAT(failed.output,
                HasSubstr(absl::StrCat(": no report in ", silent.path("r"), ": no simulation")));
  }
  const ChildResult seeds = silent.run("launch --simulate 1x2 --seeds 0:2");
  EXPECT_EQ(seeds.exit_code, 0);
  EXPECT_THAT(seeds.output, HasSubstr("note: no simulation took place"));
  // One that failed has said why.
  EXPECT_EQ(SimulatedProgram("exit 3").run("simulate 1x2").output, "");
  const SimulatedProgram good(kSimulates);
  EXPECT_EQ(good.run("simulate 1x2").output, "ran\n");
  EXPECT_EQ(good.run(absl::StrCat("simulate 1x2 --report ", good.path("r"))).output, "ran\n");
  EXPECT_THAT(good.run("simulate 1x2 --seeds 0:2").output, Not(HasSubstr("no simulation")));
}

TEST(Simulate, TriesTheFolderOfTheReportBeforeTheRun) {
  const SimulatedProgram program(kSimulates);
  std::ofstream(program.path("file")) << "text";
  for (const std::string& folder :
       {program.path("file"), program.path("file/below"), std::string("/proc/nobody")}) {
    for (const std::string& options :
         {absl::StrCat("simulate 1x2 --report ", folder),
          absl::StrCat("simulate --sweep '1x2:h100;1x1:h100' --report ", folder),
          absl::StrCat("launch --simulate 1x2 --seeds 0:3 --report ", folder)}) {
      const ChildResult refused = program.run(options);
      EXPECT_EQ(refused.exit_code, kExitLauncherFailed) << options;
      EXPECT_THAT(refused.output,
                  AllOf(HasSubstr("no report in "), HasSubstr(folder), Not(HasSubstr("ran\n"))));
    }
  }
  // Also where a variable names it; and what is tried leaves nothing.
  const ChildResult by_variable =
      program.run("simulate 1x2", "ACCELERATE_SIMULATE_REPORT=/proc/nobody");
  EXPECT_EQ(by_variable.exit_code, kExitLauncherFailed);
  EXPECT_EQ(program.run(absl::StrCat("simulate 1x2 --report ", program.path("new/r"))).exit_code,
            0);
  EXPECT_TRUE(std::filesystem::is_empty(program.path("new/r")));
  EXPECT_EQ(
      program.run(absl::StrCat("simulate 1x2 --dry_run --report ", program.path("dry"))).exit_code,
      0);
  EXPECT_FALSE(std::filesystem::exists(program.path("dry")));
}

TEST(Simulate, SaysWhoseReportItReplaces) {
  const SimulatedProgram program(kSimulates);
  const std::string folder = program.path("r");
  std::filesystem::create_directory(folder);
  const auto output_over = [&](const std::string& summary, const std::string& options = "") {
    std::ofstream(folder + "/summary.json") << summary;
    return program.run(absl::StrCat("simulate 1x2 ", options, " --report ", folder)).output;
  };
  EXPECT_THAT(output_over(R"({"program": "/far/lm"})"),
              HasSubstr("r has a report of lm, which that of "));
  EXPECT_EQ(output_over(R"({"program": "/far/lm"})", "--quiet"), "ran\n");
  EXPECT_EQ(output_over(R"({"program": "other/train"})"), "ran\n");
  EXPECT_EQ(output_over(R"({"of": "something else"})"), "ran\n");
}

// As real runs end.
TEST(Simulate, SaysThatItsOutputWasClosed) {
  const SimulatedProgram program(absl::StrCat(kSimulates, "; sleep 0.1; yes"));
  const ChildResult closed = program.run("simulate 1x2", "{", "; echo code $? >&2; } | true");
  EXPECT_THAT(
      closed.output,
      AllOf(HasSubstr("accelerate simulate: standard output was closed; stopped the program"),
            HasSubstr("code 141")));
  EXPECT_EQ(SimulatedProgram("kill -PIPE $$").run("simulate 1x2").exit_code, 141);
}

TEST(Simulate, HasTheDevicesThatItsClusterNames) {
  const Answer refused = launch({"--simulate", "2x4:h100", "--cpu", "--dry_run", "train"});
  EXPECT_EQ(refused.exit_code, kExitBadCommandLine);
  EXPECT_THAT(refused.err, HasSubstr("--simulate=2x4:h100 and --cpu exclude each other"));
  EXPECT_EQ(launch({"--sweep", "1x2:h100", "--cpu", "/bin/true"}).exit_code, kExitBadCommandLine);
  EXPECT_EQ(launch({"--simulate", "tpu-v4:2x2x1", "--cpu", "--dry_run", "train"}).exit_code,
            kExitBadCommandLine);
  EXPECT_EQ(launch({"--simulate", "2x4", "--cpu", "--dry_run", "train"}).exit_code, 0);
  for (const char* cluster : {"2x4:h100", "2x4"}) {
    const Answer without = launch({"--simulate", cluster, "--tpu", "--dry_run", "train"});
    EXPECT_EQ(without.exit_code, kExitBadCommandLine) << cluster;
    EXPECT_THAT(without.err, HasSubstr("and --tpu exclude each other: this cluster has no TPUs"));
  }
  EXPECT_EQ(launch({"--simulate", "tpu-v4:2x2x1", "--tpu", "--dry_run", "train"}).exit_code, 0);
  const TemporaryFolder folder;
  std::ofstream(folder.path("c.yaml")) << "distributed_type: 'NO'\nuse_cpu: true\n";
  const Answer with_file = launch(
      {"--simulate", "2x4:h100", "--config_file", folder.path("c.yaml"), "--dry_run", "train"});
  EXPECT_EQ(with_file.exit_code, 0) << with_file.err;
  EXPECT_THAT(with_file.out, HasSubstr("set ACCELERATE_USE_CPU=False\n"));
}

TEST(Launch, LeavesTheDefaultConfigurationAlone) {
  const SimulatedProgram program(kSimulates);
  std::filesystem::create_directories(program.path(".config/accelerate-cpp"));
  std::ofstream(program.path(".config/accelerate-cpp/default_config.yaml"))
      << "distributed_type: 'NO'\nmixed_precision: bf16\n";
  const std::string home = absl::StrCat(
      "env -u HF_HOME -u XDG_CONFIG_HOME -u XDG_CACHE_HOME HOME='", program.path(""), "'");
  const auto precision = [&](const std::string& options) {
    return program.run(absl::StrCat("launch --print_config ", options), home).output;
  };
  EXPECT_THAT(precision(""), HasSubstr("mixed_precision = bf16"));
  EXPECT_THAT(precision("--no_default_config"),
              AllOf(HasSubstr("configuration file: none"), Not(HasSubstr("bf16"))));
  EXPECT_THAT(precision("--simulate 1x2:h100"), HasSubstr("mixed_precision = bf16"));
}

// What a simulated program leaves; the numbers follow from its cluster. Up to two ranks have not
// enough memory, and three nodes are a size that it does not take.
constexpr char kSimulated[] = R"(#!/bin/sh
nodes=${ACCELERATE_SIMULATE%%x*}; ranks=${ACCELERATE_SIMULATE#*x}; ranks=${ranks%%:*}
world=$((nodes * ranks))
failure=null
if [ $world -le 2 ]; then
  failure='{"message": "rank 1 failed: out of memory\nHeld", "is_out_of_memory": true}'
fi
if [ $nodes = 3 ]; then echo "cannot divide by three"; exit 4; fi
cat >$ACCELERATE_SIMULATE_SUMMARY <<END
{"failure": $failure, "time_is_modelled": true, "memory_capacity": 4096,
 "ranks": [{"memory_peak": 1024, "driver_peak": 2048}, {"memory_peak": 1536, "driver_peak": 0}],
 "steps": {"count": 2, "median_ns": ${world}000000, "mean_ns": ${world}000000, "samples": 8,
           "exposed_ns": 500000, "mfu": 0.25, "hfu": 0.5}}
END
[ "$failure" = null ]
)";

TEST(Launch, RunsOnEachClusterOfASweep) {
  const TemporaryFolder folder;
  const std::string program = folder.path("train");
  std::ofstream(program) << kSimulated;
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const Answer some = launch({"--sweep", "1x2:h100; 2x2:h100;3x2:h100,nic=200Gbps",
                              "--tokens-per-sample=10", "--csv", folder.path("out.csv"), program},
                             "/bin:/usr/bin");
  EXPECT_EQ(some.exit_code, kExitLauncherFailed) << some.err;
  EXPECT_THAT(
      some.out,
      HasSubstr("1x2:h100                  2    2.0 ms       4000      40000  25.0 %   25.0 %"
                "      2.00 KiB of 4.00 KiB  no\n  rank 1 failed: out of memory\n"));
  EXPECT_THAT(
      some.out,
      HasSubstr("2x2:h100                  4    4.0 ms       2000      20000  25.0 %   12.5 %"
                "      2.00 KiB of 4.00 KiB  yes\n3x2"));
  EXPECT_THAT(some.out,
              HasSubstr("failed\n  failed with exit code 4\n  | cannot divide by three\n"));
  std::stringstream csv;
  csv << std::ifstream(folder.path("out.csv")).rdbuf();
  EXPECT_THAT(csv.str(), StartsWith("cluster,ranks,devices,fits,"));
  EXPECT_THAT(csv.str(), HasSubstr("\n\"2x2:h100\",4,4,yes,2,0.004,2000.0,20000.0,0.25,0.5,0.125,"
                                   "2048,1536,4096\n"));
  EXPECT_THAT(csv.str(), HasSubstr("\n\"3x2:h100,nic=200Gbps\",6,6,failed,0,,,,,,,0,0,0\n"));
}

TEST(Launch, FindsTheSmallestClusterThatFits) {
  const TemporaryFolder folder;
  const std::string program = folder.path("train");
  std::ofstream(program) << kSimulated;
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const auto fit = [&](const std::string& largest) {
    return launch({"--fit", largest, program}, "/bin:/usr/bin");
  };
  // One node is too small, and sizes between it and two do not exist.
  const Answer nodes = fit("100x2:h100");
  EXPECT_EQ(nodes.exit_code, 0) << nodes.out << nodes.err;
  EXPECT_THAT(nodes.out,
              ::testing::EndsWith("the smallest cluster on which it fits: 2x2:h100 (4 devices)\n"));
  const Answer ranks = fit("8x6:h100");
  EXPECT_EQ(ranks.exit_code, 0) << ranks.err;
  EXPECT_THAT(ranks.out, HasSubstr("fits: 1x3:h100 (3 devices)\n"));
  const Answer alone = fit("100x1:h100");
  EXPECT_THAT(alone.out, HasSubstr("\n3x1:h100"));
  EXPECT_THAT(alone.out, HasSubstr("fits: 4x1:h100 (4 devices)\n"));
  const Answer none = fit("1x2:h100");
  EXPECT_EQ(none.exit_code, kExitLauncherFailed);
  EXPECT_THAT(none.out, HasSubstr("it does not fit on 1x2:h100\n"));
  std::ofstream(program) << "#!/bin/sh\nexit 4\n";
  EXPECT_THAT(fit("1x2:h100").out,
              HasSubstr("it fails, and not for want of memory, up to 1x2:h100\n"));
}

// A program that computes on the CPU, and one whose optimizer makes no step.
TEST(Launch, SaysNothingFitsWithoutMeasuredMemory) {
  const TemporaryFolder folder;
  const std::string program = folder.path("train");
  const auto simulate = [&](const char* peak, const char* steps) {
    std::ofstream(program)
        << "#!/bin/sh\ncat >$ACCELERATE_SIMULATE_SUMMARY <<END\n"
        << "{\"failure\": null, \"time_is_modelled\": true, \"memory_capacity\": 4096, \"ranks\": "
        << "[{\"memory_peak\": " << peak << ", \"driver_peak\": 0}], \"steps\": " << steps
        << "}\nEND\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  };
  simulate("0", "null");
  const Answer sweep = launch(
      {"--sweep", "1x1:h100;1x2:h100", "--csv", folder.path("out.csv"), program}, "/bin:/usr/bin");
  EXPECT_EQ(sweep.exit_code, 0) << sweep.err;
  EXPECT_THAT(sweep.out, HasSubstr("unknown\n  nothing was measured: the program used no memory of "
                                   "a device, as one does that computes on the CPU\n1x2"));
  std::stringstream csv;
  csv << std::ifstream(folder.path("out.csv")).rdbuf();
  EXPECT_THAT(csv.str(), HasSubstr("\"1x1:h100\",1,1,unknown,0,"));
  const Answer fit = launch({"--fit", "4x8:h100", program}, "/bin:/usr/bin");
  EXPECT_EQ(fit.exit_code, kExitLauncherFailed);
  EXPECT_THAT(fit.out, AllOf(HasSubstr("without measured memory it is unknown where it fits\n"),
                             Not(HasSubstr("1x2")), Not(HasSubstr("yes"))));
  simulate("1024", "null");
  const Answer no_step = launch({"--fit", "1x1:h100", program}, "/bin:/usr/bin");
  EXPECT_EQ(no_step.exit_code, 0) << no_step.err;
  EXPECT_THAT(no_step.out, HasSubstr("yes\n  no step time: the program's optimizer made no step on "
                                     "a device\n"));
}

TEST(Launch, RefusesClustersThatDoNotExist) {
  const auto error_of = [](std::vector<std::string> args) {
    const Answer answer = launch(std::move(args));
    EXPECT_EQ(answer.exit_code, kExitBadCommandLine) << answer.out;
    EXPECT_EQ(answer.out, "");
    return answer.err;
  };
  EXPECT_THAT(error_of({"--sweep=1x2:h100;1x2:h1000", "/bin/true"}), HasSubstr("h1000"));
  EXPECT_THAT(error_of({"--sweep= ; ", "/bin/true"}), HasSubstr("--sweep names no cluster"));
  EXPECT_THAT(error_of({"--fit=tpu-v4:2x2x4", "/bin/true"}), HasSubstr("NODESxRANKS:DEVICE"));
  EXPECT_THAT(error_of({"--fit=2x4", "/bin/true"}), HasSubstr("NODESxRANKS:DEVICE"));
  EXPECT_THAT(error_of({"--fit=2x4:h100", "--sweep=1x1:h100", "/bin/true"}), HasSubstr("exclude"));
  EXPECT_THAT(error_of({"--sweep=1x1:h100", "--seeds=0:2", "/bin/true"}), HasSubstr("exclude"));
  EXPECT_THAT(error_of({"--sweep=1x1:h100"}), HasSubstr("no program given"));
  EXPECT_THAT(error_of({"--sweep=1x1:h100", "--tokens_per_sample=0", "/bin/true"}),
              HasSubstr("at least 1"));
  EXPECT_THAT(error_of({"--csv=x", "/bin/true"}), HasSubstr("without --sweep or --fit"));
  const Answer real = launch({"--sweep=1x1:h100", "/bin/true"});
  EXPECT_EQ(real.exit_code, kExitLauncherFailed);
  EXPECT_THAT(real.out, HasSubstr("no simulation took place"));
  const Answer unwritable = launch({"--sweep=1x1:h100", "--csv=/nowhere/x.csv", "/bin/true"});
  EXPECT_EQ(unwritable.exit_code, kExitLauncherFailed);
  EXPECT_EQ(unwritable.out, "");
  EXPECT_THAT(unwritable.err, HasSubstr("/nowhere/x.csv"));
}

// `accelerate simulate 1x2 --seeds 0:50` of a script whose seeds 0 and 1 end at once, 1 with an
// error, and whose seed 2 says so and runs until it is stopped, as the test's lines of shell do
// it.
class SeedsUnderCtrlC {
 public:
  explicit SeedsUnderCtrlC(const std::string& seed_2,
                           const testing::LauncherSetup& setup = {.before_exec =
                                                                      [] { setpgid(0, 0); }})
      : program_(folder_.path("train")), said_(folder_.path("said")) {
    EXPECT_EQ(mkfifo(said_.c_str(), 0600), 0);
    std::ofstream(program_)
        << "#!/bin/sh\ncd " << folder_.path("")
        << "\ncase $ACCELERATE_SIMULATE_SEED in\n0) exit 0;;\n1) echo why; exit "
           "3;;\n2) exec 7>said\n"
        << seed_2 << ";;\n*) echo >late;;\nesac\n";
    std::filesystem::permissions(program_, std::filesystem::perms::owner_all);
    process_.emplace(std::vector<std::string>{std::getenv("ACCELERATE_LAUNCHER"), "simulate", "1x2",
                                              "--seeds", "0:50", program_},
                     setup);
    lines_.open(said_);
  }

  testing::LauncherProcess& process() { return *process_; }
  /// The next line that seed 2 writes to its descriptor 7.
  std::string next_line() {
    std::string line;
    std::getline(lines_, line);
    return line;
  }
  bool has(const std::string& name) const { return std::filesystem::exists(folder_.path(name)); }

  void expect_ended(int signal = SIGINT) {
    EXPECT_EQ(process_->finish(), 128 + signal) << process_->stderr_text();
    EXPECT_THAT(process_->stdout_text(),
                ::testing::ContainsRegex(absl::StrCat(
                    "^seed 0: passed \\([0-9.]+ s\\)\n"
                    "seed 1: failed with exit code 3 \\([0-9.]+ s\\)\n  \\| why\n"
                    "2 seeds before ",
                    signal == SIGINT ? "Ctrl-C" : absl::StrCat("SIG", sigabbrev_np(signal)),
                    ", 1 failed: 1\n"
                    "repeat the first: accelerate launch --simulate 1x2 --simulate_seed 1 ")));
    EXPECT_TRUE(process_->everyone_is_gone());
    EXPECT_FALSE(has("late"));
  }

 private:
  const TemporaryFolder folder_;
  const std::string program_, said_;
  std::optional<testing::LauncherProcess> process_;
  std::ifstream lines_;
};

// Its shell is waiting when it says so: a process that it began later would miss the signal.
constexpr char kStopsInOrder[] =
    "sleep 1000 & trap 'kill $!; echo >stopped; exit 0' INT; echo ready >&7; wait $!";

// The terminal sends it to all processes of its foreground group. The run gets it once: a second
// one would end it before it has stopped in order.
TEST(Seeds, EndWithTheirRunAtCtrlC) {
  SeedsUnderCtrlC sweep(kStopsInOrder);
  EXPECT_EQ(sweep.next_line(), "ready");
  ASSERT_EQ(kill(-sweep.process().pid(), SIGINT), 0);
  sweep.expect_ended();
  EXPECT_TRUE(sweep.has("stopped"));
}

TEST(Seeds, EndWithTheirRunWhenTheLauncherAloneIsInterrupted) {
  SeedsUnderCtrlC sweep(kStopsInOrder);
  EXPECT_EQ(sweep.next_line(), "ready");
  sweep.process().signal(SIGINT);
  sweep.expect_ended();
  EXPECT_TRUE(sweep.has("stopped"));
}

// As a CI system stops a job, and as a terminal does that is closed.
TEST(Seeds, EndWithTheirRunAtSigtermAndSighup) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    SeedsUnderCtrlC sweep(absl::StrCat("sleep 1000 & trap 'kill $!; echo >stopped; exit 0' ",
                                       sigabbrev_np(signal), "; echo ready >&7; wait $!"));
    EXPECT_EQ(sweep.next_line(), "ready");
    sweep.process().signal(signal);
    sweep.expect_ended(signal);
    EXPECT_TRUE(sweep.has("stopped"));
  }
}

// Also the process that the script has left in the background, which ignores SIGINT.
TEST(Seeds, KillTheirRunWhenInterruptedTwice) {
  SeedsUnderCtrlC sweep(
      "trap 'echo asked >&7' INT; echo ready >&7; while :; do sleep 1000 & wait $!; done");
  EXPECT_EQ(sweep.next_line(), "ready");
  sweep.process().signal(SIGINT);
  EXPECT_EQ(sweep.next_line(), "asked");
  sweep.process().signal(SIGINT);
  sweep.expect_ended();
}

TEST(Seeds, LeaveAnIgnoredSignalIgnored) {
  SeedsUnderCtrlC sweep("kill -INT $$; echo alive >&7; read x <&8; kill -TERM $PPID; exit 0",
                        {.ignored_signals = {SIGINT}});
  EXPECT_EQ(sweep.next_line(), "alive");
  sweep.process().signal(SIGINT);
  sweep.process().go();
  EXPECT_EQ(sweep.process().finish(), 128 + SIGTERM);
  EXPECT_TRUE(sweep.process().everyone_is_gone());
}

TEST(Seeds, StopAndGoOnWithTheirRun) {
  SeedsUnderCtrlC sweep(
      "trap 'echo again >&7' CONT; trap 'exit 0' INT; echo ready >&7; while :; do read x <&8; "
      "echo "
      "awake >&7; done");
  EXPECT_EQ(sweep.next_line(), "ready");
  sweep.process().signal(SIGTSTP);
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(sweep.process().pid()), &info, WSTOPPED), 0);
  EXPECT_EQ(info.si_code, CLD_STOPPED);
  sweep.process().signal(SIGCONT);
  EXPECT_EQ(sweep.next_line(), "again");
  sweep.process().signal(SIGINT);
  sweep.expect_ended();
}

TEST(VariableFile, KeepsWhatOthersWrote) {
  const TemporaryFolder folder;
  const std::string path = folder.path("variables");
  std::ofstream(path) << "A=1\nMINE=old\n";
  ASSERT_TRUE(update_variable_file(path, {"MINE=new", "B=2"}).ok());
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), "A=1\nMINE=new\nB=2\n");
  EXPECT_FALSE(update_variable_file("/nowhere/x", {"A=1"}).ok());
}

}  // namespace
}  // namespace accelerate::launcher::commands
