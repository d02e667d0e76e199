#include "launch/commands/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/host_files.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Words = std::vector<std::string>;

TEST(ExpandArguments, ALinkStandsForItsCommand) {
  EXPECT_THAT(expand_arguments("/opt/bin/accelerate-launch", Words{"--cpu", "train"}),
              ElementsAre("launch", "--cpu", "train"));
  EXPECT_THAT(expand_arguments("accelerate-estimate-memory", Words{"m"}),
              ElementsAre("estimate-memory", "m"));
  for (const char* link : link_names()) EXPECT_EQ(expand_arguments(link, {}).size(), 1u) << link;
}

TEST(ExpandArguments, OtherNamesStandForNothing) {
  for (const char* name : {"accelerate", "./accelerate", "accelerate-", "accelerate-lunch", ""}) {
    EXPECT_THAT(expand_arguments(name, {}), IsEmpty()) << name;
    EXPECT_THAT(expand_arguments(name, Words{"env"}), ElementsAre("env"));
  }
}

TEST(ExpandArguments, AnOldNameStandsForItsCommand) {
  EXPECT_THAT(expand_arguments("accelerate", Words{"install_xla", "--upgrade"}),
              ElementsAre("devices", "--upgrade"));
  EXPECT_THAT(expand_arguments("accelerate", Words{"launch", "install_xla"}),
              ElementsAre("launch", "install_xla"));
}

TEST(ExpandArguments, SimulateIsALaunch) {
  EXPECT_THAT(
      expand_arguments("accelerate", Words{"simulate", "2x4:h100", "./train", "--simulate"}),
      ElementsAre("launch", "--simulate", "2x4:h100", "./train", "--simulate"));
  EXPECT_THAT(expand_arguments("accelerate", Words{"launch", "simulate"}),
              ElementsAre("launch", "simulate"));
  EXPECT_THAT(expand_arguments("accelerate", Words{"simulate"}), ElementsAre("simulate"));
  EXPECT_THAT(expand_arguments("accelerate", Words{"simulate", "--help"}),
              ElementsAre("simulate", "--help"));
  EXPECT_THAT(expand_arguments("accelerate", Words{"simulate", ""}), ElementsAre("simulate", ""));
}

TEST(CanonicalNames, AreThoseOfOptionsOnly) {
  CLI::App app;
  std::string text;
  bool flag = false;
  app.add_option("--my_text", text);
  app.add_subcommand("inner")->add_flag("--my_flag", flag);
  EXPECT_THAT(
      with_canonical_names(app, {"--my-text", "--my-text", "inner", "--my-flag", "--my-other",
                                 "--my-text=--a-b", "a-b", "--", "--my-text"}),
      ElementsAre("--my_text", "--my-text", "inner", "--my_flag", "--my-other", "--my_text=--a-b",
                  "a-b", "--", "--my-text"));
}

TEST(Simulate, SaysWhatComesFirst) {
  for (const Words& words : {Words{}, Words{"--simulate_seed", "1", "2x4", "train"}}) {
    const CommandResult result = run_command(kSimulate, words);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("accelerate simulate SPEC"));
  }
}

TEST(Simulate, StartsNoProgramWhereItIsAsked) {
  for (const Words& words :
       {Words{"--list", "./train"}, Words{"--from_dump", "failure", "./train", "--epochs"},
        Words{"--explain_op", "mm 2x2x2:bf16", "--on", "h100", "./train"}}) {
    const CommandResult result = run_command(kSimulate, words);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("start no program; leave out ./train"));
  }
  const CommandResult told = run_command(kSimulate, {"--list", "--simulate_seed", "1"});
  EXPECT_EQ(told.exit_code, 2);
  EXPECT_THAT(told.err, HasSubstr("start no program; leave out --simulate_seed=1"));
  EXPECT_EQ(run_command(kSimulate, {"--list", "--from_dump", "failure"}).exit_code, 2);
}

TEST(Simulate, ExplainsAKernel) {
  const CommandResult result =
      run_command(kSimulate, {"--explain_op", "mm 12288x4096x4096:bf16", "--on", "h100"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const size_t sources = result.out.find("sources\n");
  ASSERT_NE(sources, std::string::npos);
  EXPECT_EQ(result.out.substr(0, sources), R"(mm 12288x4096x4096:bf16 on h100
  work        412.3 GFLOP
  traffic     234.9 MB, of which 100.7 MB are written
ideal
  arithmetic  416.7 us at 989.5 TFLOP/s
  memory      70.11 us at 3350 GB/s
  kernel      416.7 us, no less than 2 us
measured
  tiles       1536 of 256x128, in 12 waves of 132; at 1 of the best tile's speed (estimate)
  arithmetic  535.2 us at 80.3 % of 989.5 TFLOP/s (mamf)
  memory      80.16 us at 87.5 % of 3350 GB/s (azure)
  ramp        2.4 us (aic)
  correction  x 1.058, by measured products nearby:
              4096x4096x4096:fp16 took 194 us (vidur)
              4096x3840x5120:fp16 took 222 us (vidur)
              4096x4096x2048:fp16 took 102 us (vidur)
              4096x5120x5120:fp16 took 316.8 us (vidur)
              4096x5120x2560:fp16 took 154 us (vidur)
              4096x5504x4096:fp16 took 259 us (vidur)
  kernel      569 us, no less than 2 us
host
  ideal       5 us
  measured    6 us (pytorch-41383, estimate)
              7.8 us with a node for the backward pass (pytorch-41383, estimate)
A simulation takes the measured time (key efficiency of the cluster).
)");
  EXPECT_THAT(
      result.out.substr(sources),
      HasSubstr("\n  vidur       Vidur, profiles of linear layers, 2024-05-14 (H100 files), "
                "https://github.com/microsoft/vidur/tree/"));
}

TEST(Simulate, ExplainsACollective) {
  const CommandResult result =
      run_command(kSimulate, {"--explain_collective", "all_reduce 25MB", "--on", "2x8:h100"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, R"(all_reduce 25MB of 16 ranks on 2x8:h100
ideal
  ring          149.8 us = 32.6 us + bytes at 213.3 GB/s
  tree          154.5 us = 18.6 us + bytes at 184 GB/s
  hierarchical  178.3 us = 18.6 us + bytes at 156.5 GB/s
  bandwidth     166.9 GB/s, of the bus 312.9 GB/s
measured: NCCL 2.28.9
  NVLink        370.8 GB/s of a GPU
  NIC           48 GB/s, 8 a node
channels that the search finds
  Ring          8 at 48 GB/s in a node, 48 GB/s between nodes
  Tree          8 at 48 GB/s in a node, 48 GB/s between nodes
  NVLS          8 at 40 GB/s in a node, 48 GB/s between nodes
  that run      16, with NVLS 16
times: latency + bytes / bandwidth, with corrections by size
  algorithm  protocol    latency     bandwidth         time  channels
  Tree       LL         25.2 us     19.5 GB/s      1.45 ms        16
  Tree       LL128      48.5 us    146.8 GB/s     237.7 us        16
  Tree       Simple     92.4 us    165.6 GB/s     308.1 us        16
  Ring       LL         40.0 us     20.8 GB/s     1.242 ms        16
  Ring       LL128      75.2 us    156.6 GB/s     234.9 us        16
  Ring       Simple    131.6 us    204.8 GB/s     306.3 us        16
  NVLSTree   Simple     66.8 us    246.2 GB/s     168.3 us        16  chosen
  bandwidth     148.5 GB/s, of the bus 278.4 GB/s
  source        github.com/NVIDIA/nccl, src/graph/tuning.cc and search.cc, restated
A simulation takes the measured time (key efficiency of the cluster).
)");
}

// A device of another vendor has closed forms alone, some those of its vendor's library, and an
// average has no NVLSTree.
TEST(Simulate, ExplainsTheCollectivesOfOthers) {
  const CommandResult others =
      run_command(kSimulate, {"--explain_collective", "all_gather 1GiB", "--on", "2x6:max1550"});
  EXPECT_THAT(others.out, HasSubstr("\nideal\n  ring"));
  EXPECT_THAT(others.out,
              HasSubstr("takes the ideal time: no model of a library is known for it.\n"));
  const CommandResult amd =
      run_command(kSimulate, {"--explain_collective", "all_gather 1GiB", "--on", "2x8:mi300x"});
  EXPECT_THAT(amd.out, HasSubstr("\nclosed forms of RCCL 2.21.5\n  ring"));
  const CommandResult average =
      run_command(kSimulate, {"--explain_collective", "all_reduce 25MB avg", "--on",
                              "2x8:h100,nccl=2.21.5,efficiency=ideal"});
  EXPECT_THAT(average.out, HasSubstr("\nmeasured: NCCL 2.21.5\n"));
  EXPECT_THAT(average.out, Not(HasSubstr("NVLSTree")));
  EXPECT_THAT(average.out, EndsWith("A simulation takes the ideal time (key efficiency of the "
                                    "cluster).\n"));
  const CommandResult direct =
      run_command(kSimulate, {"--explain_collective", "all_to_all 1MB", "--on", "2x8:h100"});
  EXPECT_THAT(direct.out, HasSubstr("NCCL has no model of it"));
}

TEST(Simulate, SaysWhatItCanExplain) {
  struct Case {
    Words words;
    const char* expected;
  };
  for (const Case& c :
       {Case{{"--explain_op", "mm 4x4", "--on", "h100"}, "expected mxnxk:TYPE, as in"},
        Case{{"--explain_op", "mm 4x4x4:bf16", "--on", "h1000"}, "expected a device"},
        Case{{"--explain_op", "mm 4x4x4:bf16", "--on", "1x1:h100,hbm=2"}, "expected a unit"},
        Case{{"--explain_op", "mm 4x4x4:bf16", "--on", "h100,efficiency=x"}, "ideal, measured"},
        Case{{"--explain_op", "mm 4x4x4:bf16"}, "--on"}, Case{{"--on", "h100"}, "--explain_op"},
        Case{{"--explain_collective", "all_reduc 1MB", "--on", "2x8:h100"},
             "did you mean \"all_reduce\"?), as in \"all_reduce 25MB\""},
        Case{{"--explain_collective", "all_reduce", "--on", "2x8:h100"}, "expected bytes"},
        Case{{"--explain_collective", "all_reduce 1XB", "--on", "2x8:h100"}, "a unit: TiB"},
        Case{{"--explain_collective", "all_gather 1MB avg", "--on", "2x8:h100"},
             "nothing in the place of \"avg\""},
        Case{{"--explain_collective", "all_reduce 1MB sum", "--on", "2x8:h100"},
             "\"avg\" in the place of \"sum\""},
        Case{{"--explain_collective", "all_reduce 1MB", "--on", "h100"}, "as in \"2x8:h100\""},
        Case{{"--explain_collective", "all_reduce 1MB", "--on", "2x8"}, "a device"},
        Case{{"--explain_collective", "all_reduce 1MB", "--on", "2x8:h100,nccl=1.0.0"},
             "a version of NCCL"},
        Case{{"--explain_collective", "all_reduce 1MB"}, "--on"},
        Case{{"--explain_collective", "reduce 1MB", "--explain_op", "read 1MB", "--on", "h100"},
             "excludes"}}) {
    const CommandResult result = run_command(kSimulate, c.words);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(c.expected));
    EXPECT_THAT(result.out, IsEmpty());
  }
}

CommandResult launch(Words words) {
  return run_command(kLaunch, std::move(words),
                     {.typed = "", .environment = {"HF_HOME=/nowhere"}, .program = {"train"}});
}

// With the caret of the simulator, which the program would print.
TEST(LaunchArguments, ChecksTheClusterOfASimulation) {
  const std::pair<const char*, const char*> bad[] = {
      {"2x4:h10", "character 5\n  2x4:h10\n      ^"},
      {"2x200:h100", "a node has 200 devices, and LibTorch counts 127 at most: divide"},
      {"2x4:h100,devices=1000", "LibTorch counts 127 at most"},
      {"2x4:h100,nic=1", "character"},
      {"2", "'x' at character 2"},
      {"2xx4", "a number of ranks per node"},
      {"h100", "a number of nodes"},
      {"0x4", "a number of nodes"},
      {"{\"num_nodes\": 2}", "at \"/ranks_per_node\""},
      {"/nowhere/c.json", "/nowhere/c.json"}};
  for (const auto& [spec, expected] : bad) {
    for (const char* look : {"--quiet", "--dry_run", "--print_config"}) {
      const CommandResult answer = launch({absl::StrCat("--simulate=", spec), look});
      EXPECT_EQ(answer.exit_code, kExitBadCommandLine) << spec;
      EXPECT_THAT(answer.err,
                  StartsWith(absl::StrCat("accelerate launch: --simulate=", spec, ": ")));
      EXPECT_THAT(answer.err, HasSubstr(expected));
    }
  }
  for (const char* spec :
       {"2x4", "2x200", "2x4:h100", "tpu-v4:2x2x4", "{\"num_nodes\": 2, \"ranks_per_node\": 2}"}) {
    EXPECT_EQ(launch({absl::StrCat("--simulate=", spec), "--dry_run"}).exit_code, 0) << spec;
  }
}

TEST(LaunchArguments, ComparesTheMeshWithTheRanks) {
  const std::vector<std::string> mesh = {"--use_parallelism_config",
                                         "--parallelism_config_dp_shard_size=2", "--dry_run"};
  const auto answer = [&](const std::string& ranks) {
    std::vector<std::string> args = {ranks};
    args.insert(args.end(), mesh.begin(), mesh.end());
    return launch(args);
  };
  EXPECT_EQ(answer("--num_processes=2").exit_code, 0);
  EXPECT_EQ(answer("--simulate=1x2").exit_code, 0);
  for (const char* ranks : {"--num_processes=8", "--simulate=2x4:h100"}) {
    EXPECT_EQ(answer(ranks).exit_code, kExitBadCommandLine);
    EXPECT_THAT(answer(ranks).err,
                HasSubstr("--parallelism_config_dp_shard_size=2 is a mesh of 2 ranks, and the run "
                          "has 8; give --parallelism_config_dp_replicate_size 4, or "));
  }
}

// What ranks get of it, and what they do not.
TEST(LaunchArguments, PassTensorParallelRanksOn) {
  const std::vector<std::string> words = {"--cpu", "--num_processes=4",
                                          "--parallelism_config_dp_replicate_size=2",
                                          "--parallelism_config_tp_size=2", "--dry_run"};
  const auto answer = [&words](const std::string& word) {
    std::vector<std::string> args = {word};
    args.insert(args.end(), words.begin(), words.end());
    return launch(args);
  };
  const CommandResult used = answer("--use_parallelism_config");
  EXPECT_EQ(used.exit_code, 0) << used.err;
  EXPECT_THAT(used.out, AllOf(HasSubstr("PARALLELISM_CONFIG_TP_SIZE=2"),
                              HasSubstr("PARALLELISM_CONFIG_DP_REPLICATE_SIZE=2")));
  EXPECT_EQ(used.err, "");
  const CommandResult unused = answer("--debug");
  EXPECT_EQ(unused.exit_code, 0);
  EXPECT_THAT(unused.out, Not(HasSubstr("PARALLELISM_CONFIG_TP_SIZE")));
  EXPECT_THAT(unused.err, HasSubstr("--parallelism_config_tp_size=2 have no effect without "
                                    "--use_parallelism_config"));
}

TEST(LaunchArguments, DrawAPipelineBeforeItRuns) {
  const std::vector<std::string> words = {"--cpu", "--num_processes=2", "--use_parallelism_config",
                                          "--parallelism_config_pp_size=2",
                                          "--parallelism_config_pp_micro_batches=3"};
  const auto answer = [&words](const std::string& word) {
    std::vector<std::string> args = words;
    args.push_back(word);
    return launch(args);
  };
  const CommandResult shown = answer("--dry_run");
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("PARALLELISM_CONFIG_PP_SIZE=2"),
                               HasSubstr("PARALLELISM_CONFIG_PP_MICRO_BATCHES=3"),
                               HasSubstr("PARALLELISM_CONFIG_PP_SCHEDULE=1f1b"),
                               HasSubstr("2 ranks, 2 stages, 3 micro-batches: bubble 25.0 %\n"
                                         "rank 0 (bubble 25.0 %, 2 in flight): F0 F1 ")));
}

TEST(FromDump, StartsTheReaderOfDumps) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  const std::string program = folder + "/accelerate-dump-report";
  std::ofstream(program) << "#!/bin/sh\nprintf %s \"$1\" > " << folder << "/said\nexit 5\n";
  ASSERT_EQ(chmod(program.c_str(), 0755), 0);
  const auto run = [](const std::string& executable) {
    return run_command(kSimulate, {"--from_dump", "failure"}, {.executable = executable});
  };
  EXPECT_EQ(run(folder + "/accelerate").exit_code, 5);
  std::ifstream said(folder + "/said");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(said), {}), "failure");
  const CommandResult missing = run("/nowhere/accelerate");
  EXPECT_EQ(missing.exit_code, kExitNotFound);
  EXPECT_THAT(missing.err, HasSubstr("there is no program /nowhere/accelerate-dump-report"));
}

}  // namespace
}  // namespace accelerate::launcher::commands
