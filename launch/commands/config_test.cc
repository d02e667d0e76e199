
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/settings/config_file.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {

using settings::load_config_file;
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

class Config : public ::testing::Test {
 protected:
  void SetUp() override { path_ = folder_ + "/accelerate-cpp/default_config.yaml"; }

  CommandResult run(Words words, const std::string& typed = "", bool is_interactive = false) {
    return run_command(kConfig, std::move(words),
                       {.typed = typed,
                        .environment = {"HF_HOME=" + folder_, "HOME=/nowhere/me"},
                        .is_interactive = is_interactive});
  }

  // The file that is written after these answers.
  Json answered(const Words& answers) {
    std::filesystem::remove(path_);
    const CommandResult result = run({}, absl::StrJoin(answers, "\n") + "\n");
    EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
    return written();
  }

  Json written() const {
    const auto config = load_config_file(path_);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->values : Json();
  }

  std::string write(const std::string& contents) const {
    std::filesystem::create_directories(folder_ + "/accelerate-cpp");
    std::ofstream(path_) << contents;
    return path_;
  }

  std::string text() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  std::string path_;
};

TEST_F(Config, DefaultsMakeAPlainRun) {
  const std::string other = folder_ + "/other.yaml";
  ASSERT_EQ(run({"default", "--config_file", other}).exit_code, 0);
  const Json config = answered(Words(20, ""));
  EXPECT_EQ(config["compute_environment"], "LOCAL_MACHINE");
  EXPECT_EQ(config["distributed_type"], "NO");
  // What `config default` takes as well.
  EXPECT_EQ(config["use_cpu"], load_config_file(other)->values["use_cpu"]);
  EXPECT_EQ(config["num_processes"], 1);
  EXPECT_EQ(config.contains("gpu_ids"), config["use_cpu"] == false);
  EXPECT_EQ(config["mixed_precision"], "no");
  EXPECT_FALSE(config.contains("fsdp_config"));
}

TEST_F(Config, AsksInThePeersOrder) {
  const std::string out = run({}, std::string("0\n4\n2\n0\n10.0.0.1\n29500\nyes\nno\n") +
                                      "no\nno\nno\nno\n4\nyes\nbf16\n")
                              .out;
  size_t last = 0;
  for (const char* question :
       {"Where do you train?", "Which kind of machine", "How many machines", "Rank of this machine",
        "Name or address", "Port of the machine", "same local network", "Compare collectives",
        "Compile the model", "DeepSpeed", "FSDP", "Megatron", "How many GPUs", "Bind each rank",
        "Data type"}) {
    const size_t at = out.find(question, last);
    EXPECT_NE(at, out.npos) << question << " does not come after the one before\n" << out;
    if (at != out.npos) last = at;
  }
  const Json config = written();
  EXPECT_EQ(config["distributed_type"], "MULTI_GPU");
  EXPECT_EQ(config["num_machines"], 2);
  EXPECT_EQ(config["machine_rank"], 0);
  EXPECT_EQ(config["main_process_ip"], "10.0.0.1");
  EXPECT_EQ(config["main_process_port"], 29500);
  EXPECT_EQ(config["same_network"], true);
  EXPECT_EQ(config["num_processes"], 4);
  EXPECT_EQ(config["enable_cpu_affinity"], true);
  EXPECT_EQ(config["mixed_precision"], "bf16");
}

// HF Accelerate's questionnaire writes keys that its launcher does not read.
TEST_F(Config, AnswersToFp8AreTheOnesThatLaunchReads) {
  const Json config = answered({"0", "0", "no", "", "", "all", "fp8", "te", "yes", "", "", "",
                                "E4M3", "16", "max", "yes", "yes", "no", "yes"});
  EXPECT_EQ(config["mixed_precision"], "fp8");
  EXPECT_EQ(config["fp8_config"]["fp8_format"], "E4M3");
  EXPECT_EQ(config["fp8_config"]["fp8_amax_history_len"], 16);
  EXPECT_EQ(config["fp8_config"]["fp8_amax_compute_algo"], "max");
  EXPECT_EQ(config["fp8_config"]["fp8_override_linear_precision"], "true,false,true");
}

TEST_F(Config, OtherMachines) {
  const Json cpu = answered({"0", "multi-CPU", "", "", "yes", "hosts", "", "4", "no"});
  EXPECT_EQ(cpu["use_cpu"], true);
  EXPECT_EQ(cpu["mpirun_config"]["mpirun_hostfile"], "hosts");
  EXPECT_EQ(cpu["num_processes"], 4);

  const Json home = answered({"0", "multi-CPU", "", "", "yes", "", "", "", "no"});
  EXPECT_EQ(home["mpirun_config"]["mpirun_hostfile"], "/nowhere/me/hostfile");

  const Json simulated = answered({"0", "simulated", "2x4:h100", "no", "no", "no", "bf16"});
  EXPECT_EQ(simulated["distributed_type"], "NO");
  EXPECT_EQ(simulated["simulate"], "2x4:h100");

  const Json tpu = answered({"0", "TPU", "", "8", "train", "yes", "pod", "zone", "", "yes", "no",
                             "a,b", "w1,w2", "", "bf16"});
  EXPECT_EQ(tpu["distributed_type"], "XLA");
  EXPECT_EQ(tpu["main_training_function"], "train");
  EXPECT_EQ(tpu["tpu_use_cluster"], true);
  EXPECT_EQ(tpu["tpu_name"], "pod");
  EXPECT_EQ(tpu["commands"], Json({"a", "b"}));
  EXPECT_EQ(tpu["tpu_vm"], Json({"w1", "w2"}));
  EXPECT_EQ(tpu["downcast_bf16"], false);

  const Json aws = answered({"AWS SageMaker", "0", "", "", "role", "no", "yes", "in.tsv", "no",
                             "DATA_PARALLEL", "", "1", "", "2", "fp16"});
  EXPECT_EQ(aws["compute_environment"], "AMAZON_SAGEMAKER");
  EXPECT_EQ(aws["profile"], "default");
  EXPECT_EQ(aws["iam_role_name"], "role");
  EXPECT_EQ(aws["sagemaker_inputs_file"], "in.tsv");
  EXPECT_EQ(aws["ec2_instance_type"], "ml.p3dn.24xlarge");
  EXPECT_EQ(aws["num_machines"], 2);
}

TEST_F(Config, BadAnswersAreExplainedThreeTimes) {
  CommandResult result =
      run({}, "moon\n0\n99\nmulti\nmulti-GPU\nnone\n0\n1\n" + std::string(20, '\n'));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("expected a number from 0 to 1 or one of the names, not \"moon\""),
            HasSubstr("from 0 to 11 or one of the names, not \"99\""), HasSubstr("not \"multi\""),
            HasSubstr("expected a whole number of at least 1, not \"none\"")));
  std::filesystem::remove(path_);
  result = run({}, "0\n0\nmaybe\nperhaps\n2\n" + std::string(20, '\n'));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("no usable answer in 3 tries"),
                                HasSubstr("expected yes or no, not \"2\"")));
  EXPECT_FALSE(std::filesystem::exists(path_));
  // A setting without a default cannot be empty.
  result = run({}, "0\n4\n2\n1\n" + std::string(20, '\n'));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("an answer is needed"));
  // The answers until then make a file.
  const std::string lost = "accelerate config --config_file " + path_ +
                           " --set compute_environment=LOCAL_MACHINE --set "
                           "distributed_type=MULTI_GPU --set num_machines=2 --set machine_rank=1\n";
  EXPECT_THAT(result.out, HasSubstr("The answers so far, as a command: " + lost));
  EXPECT_EQ(
      run({"--set", "compute_environment=LOCAL_MACHINE", "--set", "distributed_type=MULTI_GPU",
           "--set", "num_machines=2", "--set", "machine_rank=1", "--set", "num_processes=2"})
          .exit_code,
      0);
}

TEST_F(Config, AnswersAreCheckedAtTheirQuestion) {
  const std::string enters(20, '\n');
  const std::pair<const char*, const char*> bad[] = {
      {"0\n2\n\n\n\n\n\n1\n", "expected a whole number of at least 2, not \"1\""},
      {"0\n4\n\n\n\n\n\n\n4\n3\n", "several ranks need at least two devices, not \"3\""},
      {"0\n4\n\n\n\nno\nno\nyes\n2\n\n3\n\n\n\n\n4\n6\n",
       "expected a whole number of at least 6 that 6 divides, not \"4\""},
      {"0\n4\n2\n1\nfe80::1:29500\nh\n", "\"fe80::1:29500\" is not an IPv6 address"},
      {"0\n4\n2\n1\na b\nh\n", "\"a b\" has a blank"},
      {"0\n11\n2x4:h10\n", "character 5"},
      {"0\n11\n2x200:h100\n", "LibTorch counts 127"},
      {"0\n4\n\n\n\nno\nyes\n2\n\n\n\n\n\n\n\nyes\n\n4\n\n\n\n8\n",
       "the mesh has 4 ranks, and not 8"}};
  for (const auto& [typed, reason] : bad) {
    std::filesystem::remove(path_);
    const CommandResult result = run({}, typed + enters);
    EXPECT_EQ(result.exit_code, 0) << typed << result.err << result.out;
    EXPECT_THAT(result.out, HasSubstr(reason));
    EXPECT_TRUE(std::filesystem::exists(path_)) << typed;
  }
}

// Every path through the questions on which all further proposals are taken.
TEST_F(Config, ProposesWhatLaunchTakes) {
  const auto check = [&](const std::string& typed) {
    std::filesystem::remove(path_);
    const CommandResult made = run({}, typed + std::string(60, '\n'));
    EXPECT_EQ(made.exit_code, 0) << typed << made.err << made.out;
    Words words = {absl::StrCat("--config_file=", path_), "--dry_run"};
    // Whatever uses the port of machine 0 here.
    if (written().value("num_machines", 1) > 1) words.push_back("--machine_rank=1");
    const CommandResult plan = run_command(
        kLaunch, words, {.typed = "", .environment = {"HF_HOME=/nowhere"}, .program = {"train"}});
    EXPECT_EQ(plan.exit_code, 0) << typed << plan.err;
  };
  for (int machine = 0; machine < 12; ++machine) check(absl::StrCat("0\n", machine, "\n"));
  for (const char* gpus : {"0\n4\n\n\n\n", "0\n2\n\n\n\n", "0\n4\n2\n\n\n\n\n\n\n"}) {
    check(gpus);
    for (const char* stage : {"0", "1", "2", "3"}) {
      check(absl::StrCat(gpus, "yes\nno\n", stage, "\n"));
    }
    for (const char* version : {"1", "2"}) check(absl::StrCat(gpus, "no\nyes\n", version, "\n"));
    check(absl::StrCat(gpus, "no\nyes\n2\n\n\nSIZE\n"));
    check(absl::StrCat(gpus, "no\nyes\n2\n\n\n\n\n\n\n\nyes\n"));  // a mesh
  }
  check("0\n4\n\n\n\nno\nno\nyes\n2\nyes\n2\n4\n");  // Megatron-LM
  check("0\n9\n\n\n\nyes\n");                        // a TPU pod without a name
  check("0\n9\n\n\n\nyes\n\n\n\nyes\n");             // and its commands
  check("0\n1\n\n\n\n\n\nfp8\n");
  check("0\n1\n\n\n\n\n\nfp8\nte\nyes\n");
  check("1\n");              // SageMaker
  check("1\n1\n\n\nyes\n");  // with an image that is not named
}

TEST_F(Config, AnEndOfInputIsAnError) {
  const CommandResult result = run({}, "0\n0\n");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("--set compute_environment=LOCAL_MACHINE --set "
                                    "distributed_type=NO"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("the input ended at the question"), HasSubstr("--set")));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(Config, MenusTakeArrowsDigitsAndNames) {
  // Down from the first, up around to the last, and back; then 11 by two digits; then by name.
  const std::string keys = "\x1b[B\x1b[A\r" + std::string("11\r") + "1x4\n" + "\n\n\n" + "bf\r";
  const CommandResult result = run({}, keys, true);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(written()["simulate"], "1x4");
  EXPECT_EQ(written()["mixed_precision"], "bf16");
  EXPECT_THAT(result.out, HasSubstr("-> 11  simulated cluster"));
  std::filesystem::remove(path_);
  // Around the top to AWS, and Ctrl-C at the next menu.
  const CommandResult stopped = run({}, "\x1b[A\r\x03", true);
  EXPECT_EQ(stopped.exit_code, 1);
  EXPECT_THAT(stopped.err, AllOf(HasSubstr("credentials"), HasSubstr("nothing is written")));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(Config, MenusKnowWhereAnEscapeSequenceEnds) {
  // Ctrl-Down and Ctrl-Up; Delete; an Esc of its own.
  const std::string keys = "\x1b[1;5B\x1b[1;5A\x1b[3~\r" +
                           std::string(
                               "\x1b"
                               "11\r") +
                           "1x4\n\n\n\n\r";
  const CommandResult result = run({}, keys, true);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(written()["simulate"], "1x4");
  std::filesystem::remove(path_);
  EXPECT_THAT(run({}, "\x1b\x03", true).err, HasSubstr("nothing is written"));
}

TEST_F(Config, EscLeavesAMenu) {
  const CommandResult result = run({}, "\x1b[B\x1b", true);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("stopped at the question"), HasSubstr("nothing is written")));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(Config, SetAsksNothing) {
  const CommandResult result =
      run({"--set", "distributed_type=MULTI_GPU", "--set", "fp8_config.margin=2", "--set",
           "num-processes=4", "--set", "mixed_precision=bf16", "--set", "tpu_env=A=1,B=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(written()["distributed_type"], "MULTI_GPU");
  EXPECT_EQ(written()["use_cpu"], false);
  EXPECT_EQ(written()["num_processes"], 4);
  EXPECT_EQ(written()["fp8_config"]["fp8_margin"], 2);
  EXPECT_EQ(written()["tpu_env"], Json({"A=1", "B=2"}));

  const auto error = [&](const std::string& assignment) {
    const CommandResult refused = run({"--set", assignment});
    EXPECT_EQ(refused.exit_code, assignment == "num_processes=4" ? 1 : kExitBadCommandLine);
    return refused.err;
  };
  const std::string before = text();
  EXPECT_THAT(error("num_processs=4"), HasSubstr("did you mean num_processes?"));
  EXPECT_THAT(error("num_processes=four"), HasSubstr("num_processes=four: expected"));
  EXPECT_THAT(error("mixed_precision=fp12"), HasSubstr("mixed_precision=fp12"));
  EXPECT_THAT(error("distributed_type=MULTI"), HasSubstr("expected one of NO, "));
  EXPECT_THAT(error("num_processes"), HasSubstr("expected KEY=VALUE"));
  EXPECT_THAT(error("num_processes=4"), HasSubstr("accelerate config update --set"));
  EXPECT_EQ(text(), before);
}

TEST_F(Config, TensorParallelRanksGetToTheirSection) {
  const CommandResult result =
      run({"--set", "distributed_type=MULTI_GPU", "--set", "num_processes=4", "--set",
           "parallelism_config.dp_replicate_size=2", "--set", "parallelism_config.tp_size=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(written()["parallelism_config"]["parallelism_config_dp_replicate_size"], 2);
  EXPECT_EQ(written()["parallelism_config"]["parallelism_config_tp_size"], 2);
}

TEST_F(Config, WhatLaunchWouldRefuseIsNotWritten) {
  for (const char* assignment :
       {"num_processes=-5", "main_process_port=70000", "num_machines=0", "rdzv_backend=x",
        "simulate=2xx4", "num_machines=3", "main_process_ip=fe80::1:29500", "simulate=2x4:h10",
        "simulate=2x200:h100", "simulate=2x4:h100,devices=1000",
        "parallelism_config.dp_shard_size=3", "parallelism_config.tp_size=3"}) {
    const CommandResult result =
        run({"--set", assignment, "--set", "num_processes=4", "--set", assignment});
    EXPECT_EQ(result.exit_code, kExitBadCommandLine) << assignment;
    EXPECT_FALSE(std::filesystem::exists(path_)) << result.err;
  }
  const CommandResult cluster = run({"--set", "simulate=2x4:h10"});
  EXPECT_THAT(cluster.err, HasSubstr("simulate: 2x4:h10: bad topology \"2x4:h10\": expected"));
  EXPECT_THAT(cluster.err, HasSubstr("\n  2x4:h10\n      ^"));
  const std::string before = "distributed_type: 'NO'\nnum_processes: 1\n";
  write(before);
  EXPECT_EQ(run({"update", "--set", "simulate=2x4:h10"}).exit_code, kExitBadCommandLine);
  EXPECT_EQ(text(), before);
  std::filesystem::remove(path_);
  EXPECT_THAT(run({"--set", "num_processes=-5"}).err,
              HasSubstr("num_processes: -5 is not a whole number from 1"));
}

TEST_F(Config, TextsAreUtf8) {
  const std::string json = folder_ + "/c.json";
  const CommandResult result =
      run({"--config_file", json, "--set", "main_process_ip=\xff", "--set", "distributed_type=NO"});
  EXPECT_EQ(result.exit_code, kExitBadCommandLine);
  EXPECT_THAT(result.err, HasSubstr("--set main_process_ip: the value is not UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(json));
  EXPECT_THAT(run({}, "0\n4\n2\n0\n\xff\nhost\n").out, HasSubstr("the answer is not UTF-8"));
  write("distributed_type: 'NO'\nmain_process_ip: \xff\n");
  EXPECT_THAT(run({"update"}).err, HasSubstr("is not UTF-8"));
}

TEST_F(Config, RanksAreSpreadEvenlyOverTheMachines) {
  const CommandResult result = run({}, "0\n4\n3\n0\nhost\n1234\n\n\n\n\n\n\n4\n3\n\n\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("expected a whole number of at least 3 that 3 divides"));
  EXPECT_EQ(written()["num_processes"], 3);
}

TEST_F(Config, SetGoesByTheKindOfTheRun) {
  const auto made = [&](Words assignments) {
    std::filesystem::remove(path_);
    Words words;
    for (const std::string& assignment : assignments) {
      words.insert(words.end(), {"--set", assignment});
    }
    const CommandResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return written();
  };
  EXPECT_EQ(made({"distributed_type=MULTI_CPU", "num_processes=2"})["use_cpu"], true);
  EXPECT_EQ(made({"distributed_type=MULTI_GPU", "num_processes=2", "use_cpu=true"})["use_cpu"],
            true);
  EXPECT_EQ(made({"simulate=2x4"})["use_cpu"], false);
  // As many ranks as launch takes, where no number is given.
  EXPECT_GE(made({"distributed_type=MULTI_GPU"})["num_processes"], 2);
  EXPECT_GE(made({"distributed_type=MULTI_XPU"})["num_processes"], 2);
  EXPECT_GE(
      made({"distributed_type=MULTI_CPU", "num_machines=3", "main_process_ip=h"})["num_processes"],
      3);
  const CommandResult one = run({"--config_file", folder_ + "/one.yaml", "--set",
                                 "distributed_type=MULTI_GPU", "--set", "num_processes=1"});
  EXPECT_EQ(one.exit_code, kExitBadCommandLine);
  EXPECT_THAT(one.err,
              HasSubstr("one.yaml: distributed_type: MULTI_GPU needs at least 2 ranks, not "
                        "one.yaml: num_processes: 1; give more ranks"));
  // A simulated cluster has what SPEC says.
  made({"simulate=2x4"});
  EXPECT_THAT(text(), AllOf(Not(HasSubstr("num_processes")), Not(HasSubstr("distributed_type"))));
  EXPECT_EQ(made({"simulate=2x4", "distributed_type=FSDP"})["distributed_type"], "FSDP");
  const Json aws = made({"compute_environment=AMAZON_SAGEMAKER", "ec2_instance_type=ml.p3.2xlarge",
                         "iam_role_name=role"});
  EXPECT_EQ(aws["distributed_type"], "NO");
  EXPECT_EQ(aws["use_cpu"], false);
  EXPECT_FALSE(aws.contains("num_processes"));
}

TEST_F(Config, DefaultIsForThisMachineAndReplacesNothing) {
  CommandResult result = run({"default", "--mixed_precision", "bf16"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(written()["mixed_precision"], "bf16");
  EXPECT_GE(written()["num_processes"], 1);
  const std::string before = text();
  result = run({"default"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("already; the file is unchanged"));
  EXPECT_EQ(text(), before);
  EXPECT_EQ(run({"default", "--overwrite"}).exit_code, 0);
  EXPECT_EQ(written()["mixed_precision"], "no");
  const std::string other = folder_ + "/other.json";
  EXPECT_EQ(run({"default", "--config_file", other}).exit_code, 0);
  EXPECT_EQ(load_config_file(other)->values["mixed_precision"], "no");
  result = run({"default", "--config_file", folder_ + "/x.yaml", "--mixed_precision", "fp12"});
  EXPECT_EQ(result.exit_code, kExitBadCommandLine);
  EXPECT_THAT(result.err, HasSubstr("fp12"));
}

TEST_F(Config, UpdateWritesThePresentForm) {
  write("distributed_type: MULTI_GPU\nfp16: true\nnum_processes: 2\ndynamo_backend: 'NO'\n");
  CommandResult result = run({"update"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(text(),
              AllOf(HasSubstr("mixed_precision: fp16"), Not(HasSubstr("dynamo_backend")),
                    HasSubstr("compute_environment: LOCAL_MACHINE"), Not(HasSubstr("fp16: true"))));
  result = run({"update", "--set", "num_processes=8", "--set", "fp8_margin=2"});
  EXPECT_EQ(result.out, "The configuration " + path_ +
                            " was changed:\n  fp8_config.fp8_margin: not set -> 2\n"
                            "  num_processes: 2 -> 8\n");
  EXPECT_THAT(run({"update"}).out, HasSubstr("is up to date"));
  EXPECT_EQ(written()["num_processes"], 8);
  EXPECT_EQ(run({"update", "--set", "num_processes="}).exit_code, 0);
  EXPECT_EQ(written()["num_processes"], -1);
  std::filesystem::remove(path_);
  result = run({"update"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("there is no configuration file"));
}

TEST_F(Config, TheFileOfHfAccelerateIsReadAndLeftAsItIs) {
  const std::string peers = folder_ + "/accelerate/default_config.yaml";
  const std::string before = "distributed_type: MULTI_CPU\nnum_processes: 3\nuse_cpu: true\n";
  std::filesystem::create_directories(folder_ + "/accelerate");
  std::ofstream(peers) << before;
  const CommandResult updated = run({"update", "--set", "mixed_precision=bf16"});
  EXPECT_EQ(updated.exit_code, 0) << updated.err;
  EXPECT_THAT(updated.out, HasSubstr(path_ + ", which is read in place of " + peers));
  EXPECT_EQ(written()["num_processes"], 3);
  EXPECT_EQ(written()["mixed_precision"], "bf16");
  // From now on the own one counts.
  EXPECT_EQ(run({"update", "--set", "num_processes=4"}).out,
            "The configuration " + path_ + " was changed:\n  num_processes: 3 -> 4\n");
  EXPECT_EQ(written()["mixed_precision"], "bf16");
  std::filesystem::remove(path_);
  EXPECT_THAT(run({"default"}).out, HasSubstr("read in place of " + peers));
  std::stringstream text;
  text << std::ifstream(peers).rdbuf();
  EXPECT_EQ(text.str(), before);
}

TEST_F(Config, UpdateReplacesAKeyInEverySpelling) {
  write(
      "distributed_type: 'NO'\nnum_processes: 2\nfp8_config:\n  interval: 2\n  "
      "margin: 3\n");
  EXPECT_EQ(run({"update", "--set", "fp8_config.interval=4"}).exit_code, 0);
  EXPECT_EQ(written()["fp8_config"], Json({{"fp8_interval", 4}, {"margin", 3}}));
  EXPECT_EQ(run({"update", "--set", "fp8_margin="}).exit_code, 0);
  EXPECT_EQ(written()["fp8_config"], Json({{"fp8_interval", 4}}));
}

TEST_F(Config, WhatIsNotInThisVersionIsNamedAndNotWritten) {
  const CommandResult asked = run({}, "0\n9\n\n\n\n\nbf16\n");
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  for (const auto& [question, works] :
       {std::pair("Compile the model (torch.compile)?", true),
        std::pair("Does double become float, and float bfloat16?", false)}) {
    const size_t at = asked.out.find(question);
    ASSERT_NE(at, asked.out.npos) << question;
    const std::string rest = asked.out.substr(at + std::string_view(question).size());
    EXPECT_EQ(!absl::StartsWith(rest, " (not in this version)"), works) << question;
  }
  std::filesystem::remove(path_);
  CommandResult refused = run(
      {"--set", "distributed_type=XLA", "--set", "num_processes=2", "--set", "downcast_bf16=true"});
  EXPECT_EQ(refused.exit_code, kExitBadCommandLine);
  EXPECT_THAT(refused.err, HasSubstr(" is not in this version"));
  EXPECT_FALSE(std::filesystem::exists(path_));
  const std::string before = "distributed_type: XLA\nnum_processes: 2\ndowncast_bf16: true\n";
  write(before);
  refused = run({"update"});
  EXPECT_EQ(refused.exit_code, kExitBadCommandLine);
  EXPECT_THAT(refused.err, HasSubstr("default_config.yaml:3: downcast_bf16: true is not"));
  EXPECT_EQ(text(), before);
}

TEST_F(Config, ATerminalIsAsBeforeAlsoAfterASignal) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    CLI::App app;
    const RunCommand run = kConfig.declare(app);
    Invocation invocation{std::cin, std::cout, std::cerr, {"HF_HOME=" + folder_}, true};
    _exit(run(invocation));
  }
  // The terminal's settings last as long as somebody has it open.
  const int other_end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(other_end, 0);
  std::string seen;
  char buffer[4096];
  for (ssize_t n; seen.find("AWS SageMaker") == seen.npos &&
                  (n = read(terminal, buffer, sizeof(buffer))) > 0;) {
    seen.append(buffer, n);
  }
  termios settings = {};
  ASSERT_EQ(tcgetattr(other_end, &settings), 0);
  EXPECT_EQ(settings.c_lflag & (ICANON | ECHO), 0u);
  kill(child, SIGTERM);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  ASSERT_EQ(tcgetattr(other_end, &settings), 0);
  EXPECT_EQ(settings.c_lflag & (ICANON | ECHO), static_cast<tcflag_t>(ICANON | ECHO));
  close(other_end);
  close(terminal);
}

// A person's terminal: keys arrive one by one, and the terminal is as before at the end.
TEST_F(Config, WorksOnATerminal) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    CLI::App app;
    const RunCommand run = kConfig.declare(app);
    Invocation invocation{std::cin, std::cout, std::cerr, {"HF_HOME=" + folder_}, true};
    const int exit_code = run(invocation);
    termios after = {};
    tcgetattr(STDIN_FILENO, &after);
    const bool is_restored = (after.c_lflag & ICANON) != 0 && (after.c_lflag & ECHO) != 0;
    _exit(exit_code == 0 && is_restored ? 0 : 10 + exit_code);
  }
  struct Step {
    const char* wait_for;
    const char* keys;
  };
  std::string seen;
  size_t from = 0;
  for (const Step& step :
       {Step{"AWS SageMaker", "\r"}, Step{"simulated cluster", "\x1b[A\r"},
        Step{"[2x4]: ", "1x8\r"}, Step{"(torch.compile)?", "\r"}, Step{"ZeRO?", "\r"},
        Step{"(FSDP)?", "\r"}, Step{"3  fp8", "\x1b[B\x1b[B\r"}, Step{"was written to", ""}}) {
    char buffer[4096];
    ssize_t n = 0;
    size_t at;
    while ((at = seen.find(step.wait_for, from)) == seen.npos &&
           (n = read(terminal, buffer, sizeof(buffer))) > 0) {
      seen.append(buffer, n);
    }
    ASSERT_NE(at, seen.npos) << step.wait_for << " is not in\n" << seen;
    from = at + std::string_view(step.wait_for).size();
    const std::string_view keys = step.keys;
    ASSERT_EQ(::write(terminal, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Whatever else it says goes nowhere; a full terminal would stop it.
  char rest[256];
  while (read(terminal, rest, sizeof(rest)) > 0) {
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << seen;
  close(terminal);
  EXPECT_EQ(written()["simulate"], "1x8");
  EXPECT_EQ(written()["mixed_precision"], "bf16");
}

}  // namespace
}  // namespace accelerate::launcher::commands
