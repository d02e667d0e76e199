#include "launch/plan/launch_plan.h"

#include <array>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launch/settings/validate.h"

namespace accelerate::launcher::plan {

using agent::AgentOptions;
using settings::ConfigFile;
using settings::Job;
using settings::JobKind;
using settings::Machine;
using settings::mpi_flavour;
using settings::MpiFlavour;
using settings::Settings;
using settings::TypedFlags;
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

struct Setup {
  TypedFlags typed;
  std::string config = {};
  Machine machine = {};
  Job job = {};
  std::vector<std::string> command = {"train", "--lr", "0.1"};
  std::vector<std::string> typed_options = {};
  std::string module_loader = kModuleLoader;
  std::string executable = "accelerate";
};

absl::StatusOr<LaunchPlan> plan_of(const Setup& setup,
                                   const std::vector<std::string>& environment = {}) {
  ConfigFile config;
  if (!setup.config.empty()) {
    absl::StatusOr<ConfigFile> parsed =
        settings::parse_config(setup.config, settings::ConfigFormat::kYaml, "c.yaml");
    if (!parsed.ok()) return parsed.status();
    config = *parsed;
  }
  absl::StatusOr<Settings> settings =
      Settings::resolve(setup.typed, setup.config.empty() ? nullptr : &config, environment);
  if (!settings.ok()) return settings.status();
  if (absl::Status ok = settings::complete(*settings, setup.machine, setup.job); !ok.ok())
    return ok;
  return make_plan({.settings = *settings,
                    .machine = setup.machine,
                    .job = setup.job,
                    .command = setup.command,
                    .environment = environment,
                    .typed_options = setup.typed_options,
                    .module_loader = setup.module_loader,
                    .executable = setup.executable});
}

std::string text_of(const Setup& setup) {
  const absl::StatusOr<LaunchPlan> plan = plan_of(setup);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? to_text(*plan) : "";
}

// The lines that begin with one of these words.
std::vector<std::string> lines_of(const Setup& setup, const std::string& word) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text_of(setup), '\n')) {
    if (absl::StartsWith(line, word)) lines.emplace_back(line);
  }
  return lines;
}

std::string error_of(const Setup& setup) {
  const absl::StatusOr<LaunchPlan> plan = plan_of(setup);
  EXPECT_FALSE(plan.ok());
  const std::string message(plan.status().message());
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  return message;
}

Machine with_mpi(MpiFlavour flavour) {
  Machine machine;
  machine.find_mpi = [flavour] { return settings::MpiProgram{"mpirun", flavour}; };
  machine.read_file = [](const std::string& path) -> std::optional<std::string> {
    if (path == "H") return "# hosts\nnode7:4\nnode8:4\n";
    return std::nullopt;
  };
  return machine;
}

TEST(AgentPlan, IsStandaloneOnOneMachine) {
  EXPECT_THAT(text_of({.typed = {{"num_processes", {"2"}}, {"mixed_precision", {"bf16"}}}}),
              StartsWith("kind: ranks of this machine\n"
                         "program: train --lr 0.1\n"
                         "ranks on this machine: 2\n"
                         "rendezvous at: 127.0.0.1, port any\n"));
}

TEST(AgentPlan, TakesAFreePortForOneThatIsInUse) {
  Machine machine;
  machine.is_port_in_use = [](uint16_t port) { return port == 4000; };
  const auto plan = plan_of(
      {.typed = {{"num_processes", {"2"}}, {"main_process_port", {"4000"}}}, .machine = machine});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(std::get<AgentOptions>(plan->action).endpoint_port, 0);
  EXPECT_THAT(plan->notes, ElementsAre(HasSubstr("port 4000 is in use")));
}

TEST(AgentPlan, CountsTheDevicesThatItsRanksWillSee) {
  const Machine machine = {.device_kind = "gpu", .devices = 2, .installed_devices = 4};
  const std::pair<const char*, int> cases[] = {{"all", 2}, {"0,1,3", 3}, {"0,9", 1}};
  for (const auto& [ids, present] : cases) {
    const auto plan =
        plan_of({.typed = {{"num_processes", {"3"}}, {"gpu_ids", {ids}}}, .machine = machine});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(std::get<AgentOptions>(plan->action).devices_needed, 3);
    EXPECT_EQ(std::get<AgentOptions>(plan->action).devices_present, present) << ids;
  }
}

TEST(AgentPlan, RefusesRanksAndKeysThatThereAreNot) {
  const std::pair<TypedFlags, const char*> wrong[] = {
      {{{"num_processes", {"2"}}, {"local_ranks_filter", {"7"}}}, "no local rank 7"},
      {{{"num_processes", {"2"}}, {"tee", {"2:3"}}}, "--tee: this machine has no local rank 2"},
      {{{"rdzv_conf", {"speed=5"}}},
       "--rdzv_conf: unknown key speed; known keys: close_timeout, is_host"},
      {{{"rdzv_conf", {"join_timeout=soon"}}}, "join_timeout=soon is not a number of seconds"}};
  for (const auto& [typed, reason] : wrong) {
    EXPECT_THAT(error_of({.typed = typed}), HasSubstr(reason));
  }
}

const TypedFlags kTwoMachines = {{"num_processes", {"8"}},
                                 {"num_machines", {"2"}},
                                 {"machine_rank", {"0"}},
                                 {"main_process_ip", {"10.0.0.1"}}};

TEST(AgentPlan, ChecksThePortOnlyOnMachineZero) {
  Machine machine;
  machine.is_port_in_use = [](uint16_t) { return true; };
  EXPECT_THAT(error_of({.typed = kTwoMachines, .machine = machine}), HasSubstr("port 29500"));
  TypedFlags second = kTwoMachines;
  second["machine_rank"] = {"1"};
  EXPECT_THAT(text_of({.typed = second, .machine = machine}),
              StartsWith("kind: ranks of several machines\n"
                         "program: train --lr 0.1\n"
                         "ranks on this machine: 4\n"
                         "machines: 2\n"
                         "this machine: 1\n"
                         "run: none\n"
                         "rendezvous at: 10.0.0.1, port 29500\n"));
}

TEST(AgentPlan, AsksForWhatSeveralMachinesNeed) {
  TypedFlags typed = kTwoMachines;
  typed.erase("main_process_ip");
  EXPECT_THAT(error_of({.typed = typed}), HasSubstr("--main_process_ip"));
  typed = kTwoMachines;
  typed.erase("machine_rank");
  EXPECT_THAT(error_of({.typed = typed}), HasSubstr("--machine_rank 0 on 10.0.0.1"));
  typed = kTwoMachines;
  typed["machine_rank"] = {"2"};
  EXPECT_THAT(error_of({.typed = typed}), HasSubstr("--machine_rank=2 is not below"));
  typed = kTwoMachines;
  typed["main_process_port"] = {"0"};
  EXPECT_THAT(error_of({.typed = typed}), HasSubstr("cannot agree on"));
}

TEST(AgentPlan, MayBeElastic) {
  EXPECT_THAT(text_of({.typed = {{"nnodes", {"2:4"}},
                                 {"num_processes", {"8"}},
                                 {"rdzv_backend", {"c10d"}},
                                 {"rdzv_endpoint", {"[::1]:77"}},
                                 {"rdzv_id", {"r1"}},
                                 {"max_restarts", {"3"}},
                                 {"tee", {"0:3,1:1"}},
                                 {"log_dir", {"logs"}}}}),
              StartsWith("kind: ranks of machines that come and go\n"
                         "program: train --lr 0.1\n"
                         "ranks on this machine: 2\n"
                         "machines: 2 to 4\n"
                         "run: r1\n"
                         "rendezvous at: ::1, port 77\n"
                         "restarts: 3\n"
                         "logs: logs\n"
                         "to console and files: 0,0:3,1:1\n"));
  EXPECT_THAT(error_of({.typed = {{"tee", {"4"}}}}), HasSubstr("--tee=4: expected 0 (none)"));
  EXPECT_THAT(error_of({.typed = {{"rdzv_conf", {"timeout"}}}}), HasSubstr("key=value"));
}

TEST(AgentPlan, ShowsWhatIsNotAsUsual) {
  EXPECT_THAT(text_of({.typed = {{"num_processes", {"2"}},
                                 {"local_ranks_filter", {"1,0"}},
                                 {"kill_grace", {"90"}},
                                 {"role", {"trainer"}},
                                 {"local_addr", {"10.0.0.2"}},
                                 {"no_preflight", {"true"}},
                                 {"rdzv_conf", {"join_timeout=60,read_timeout=5"}}}}),
              HasSubstr("rendezvous: join_timeout=60,read_timeout=5\n"
                        "others reach it at: 10.0.0.2\n"
                        "local ranks shown: 0,1\n"
                        "killed after: 1m30s\n"
                        "role: trainer\n"
                        "checks before the start: none\n"));
}

TEST(Plans, SayWhatTheyDoNot) {
  const auto mpirun = plan_of({.typed = {{"mpirun_hostfile", {"H"}},
                                         {"num_processes", {"2"}},
                                         {"max_restarts", {"3"}},
                                         {"log_dir", {"logs"}}},
                               .machine = with_mpi(MpiFlavour::kOpenMpi)});
  ASSERT_TRUE(mpirun.ok()) << mpirun.status();
  EXPECT_THAT(mpirun->notes, ElementsAre("mpirun starts the ranks, and --max_restarts, --log_dir "
                                         "have no effect"));
  const auto simulated = plan_of({.typed = {{"simulate", {"2x4"}}, {"tee", {"3"}}}});
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  EXPECT_THAT(simulated->notes, ElementsAre(HasSubstr("one process, and --tee has no effect")));
  const auto usual = plan_of({.typed = {{"simulate", {"2x4"}}, {"tee", {"0"}}}});
  ASSERT_TRUE(usual.ok()) << usual.status();
  EXPECT_THAT(usual->notes, testing::IsEmpty());
}

process::EnvironmentOverlay variables_of(const Setup& setup,
                                         const std::vector<std::string>& environment = {}) {
  const absl::StatusOr<LaunchPlan> plan = plan_of(setup, environment);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? std::get<SimulationPlan>(plan->action).process.environment
                   : process::EnvironmentOverlay();
}

TEST(SimulationPlan, SaysWhatRepeatsTheRun) {
  const TypedFlags simulated = {{"simulate", {"2x4:h100"}}};
  EXPECT_THAT(variables_of({.typed = simulated,
                            .config = "distributed_type: FSDP\n"
                                      "num_processes: 2\nuse_cpu: true\n"}),
              AllOf(Contains(Pair("ACCELERATE_SIMULATE_FLAGS", "--use_fsdp")),
                    Contains(Pair("ACCELERATE_SIMULATE_VARIABLES", "")),
                    Contains(Pair("ACCELERATE_USE_CPU", "False"))));
  // Threads have a flag; an engine's variables count for programs that make its plug-in themselves.
  EXPECT_THAT(
      variables_of({.typed = simulated}, {"OMP_NUM_THREADS=4", "FSDP_VERSION=2", "PATH=/bin",
                                          "PYTORCH_ALLOC_CONF=expandable_segments:True"}),
      AllOf(Contains(Pair("ACCELERATE_SIMULATE_FLAGS", "--num_cpu_threads_per_process 4")),
            Contains(Pair("ACCELERATE_SIMULATE_VARIABLES",
                          "FSDP_VERSION=2 PYTORCH_ALLOC_CONF=expandable_segments:True"))));
  // One thread is what a simulated run takes anyway.
  EXPECT_THAT(variables_of({.typed = simulated}, {"OMP_NUM_THREADS=1"}),
              AllOf(Contains(Pair("ACCELERATE_SIMULATE_FLAGS", "")),
                    Contains(Pair("ACCELERATE_SIMULATE_VARIABLES", ""))));
  // A switch of the environment that a file turns off.
  EXPECT_THAT(variables_of({.typed = simulated, .config = "distributed_type: 'NO'\n"},
                           {"ACCELERATE_USE_DEEPSPEED=true"}),
              Contains(Pair("ACCELERATE_SIMULATE_VARIABLES", "ACCELERATE_USE_DEEPSPEED=false")));
  // Which of DeepSpeed's settings stood in a file that contradicts DeepSpeed's own.
  EXPECT_THAT(
      variables_of({.typed = simulated,
                    .config = "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
                              "  zero_stage: 2\n  deepspeed_config_file: z.json\n"}),
      AllOf(Contains(Pair("ACCELERATE_SIMULATE_FLAGS",
                          "--use_deepspeed --deepspeed_config_file z.json --zero_stage 2")),
            Contains(Pair("ACCELERATE_SIMULATE_VARIABLES",
                          "ACCELERATE_CONFIG_DS_FIELDS=zero_stage,deepspeed_config_file"))));
  TypedFlags again = simulated;
  again["use_deepspeed"] = {"true"};
  EXPECT_THAT(variables_of({.typed = again}, {"ACCELERATE_CONFIG_DS_FIELDS=zero_stage"}),
              AllOf(Not(Contains(testing::Key("ACCELERATE_CONFIG_DS_FIELDS"))),
                    Contains(Pair("ACCELERATE_SIMULATE_VARIABLES",
                                  "ACCELERATE_CONFIG_DS_FIELDS=zero_stage"))));
}

TEST(SimulationPlan, RemovesWhatAnOuterRunSaidAboutRanks) {
  const auto variables = variables_of({.typed = {{"simulate", {"2x4"}}}});
  EXPECT_THAT(variables, Contains(Pair("ACCELERATE_SIMULATE", "2x4")));
  for (const auto& [name, removed] : process::without_outer_run()) {
    EXPECT_THAT(variables, Contains(Pair(name, removed)));
  }
  for (const char* choice : {"SEED", "NUMERICS", "UNKNOWN_VALUES", "FOLD"}) {
    EXPECT_FALSE(variables.contains(absl::StrCat("ACCELERATE_SIMULATE_", choice))) << choice;
  }
}

TEST(SimulationPlan, HandsOnWhatTheRunIsTold) {
  const std::vector<std::array<const char*, 3>> rows = {
      {"simulate_seed", "7", "ACCELERATE_SIMULATE_SEED"},
      {"simulate_numerics", "shapes", "ACCELERATE_SIMULATE_NUMERICS"},
      {"simulate_unknown_values", "nan", "ACCELERATE_SIMULATE_UNKNOWN_VALUES"},
      {"simulate_fold", "true", "ACCELERATE_SIMULATE_FOLD"},
      {"report", "out", "ACCELERATE_SIMULATE_REPORT"},
      {"quiet", "true", "ACCELERATE_SIMULATE_QUIET"},
      {"no_detect", "races", "ACCELERATE_SIMULATE_NO_DETECT"},
      {"faults", "rank 1 at step 2: crash", "ACCELERATE_SIMULATE_FAULTS"},
      {"timeouts", "wait", "ACCELERATE_SIMULATE_TIMEOUTS"},
      {"semantics", "gloo", "ACCELERATE_SIMULATE_SEMANTICS"},
      {"log", "a.log", "ACCELERATE_SIMULATE_LOG"},
      {"replay", "b.log", "ACCELERATE_SIMULATE_REPLAY"},
      {"twice", "true", "ACCELERATE_SIMULATE_TWICE"}};
  for (const auto& [name, value, variable] : rows) {
    const process::EnvironmentOverlay variables =
        variables_of({.typed = {{"simulate", {"2x4"}}, {name, {value}}}});
    EXPECT_THAT(variables, Contains(Pair(variable, value)));
    for (const auto& [other_name, other_value, other] : rows) {
      if (other == variable) continue;
      EXPECT_THAT(variables, Not(Contains(Pair(other, other_value)))) << name;
    }
  }
}

TEST(AgentPlan, LoadsModules) {
  EXPECT_THAT(text_of({.typed = {{"module", {"true"}}, {"main_training_function", {"go"}}},
                       .command = {"libtrain.so", "x"}}),
              HasSubstr("program: accelerate-module go libtrain.so x\n"));
}

TEST(MpirunPlan, LoadsModules) {
  EXPECT_THAT(lines_of({.typed = {{"mpirun_hostfile", {"H"}},
                                  {"num_processes", {"16"}},
                                  {"num_machines", {"4"}},
                                  {"module", {"true"}}},
                        .machine = with_mpi(MpiFlavour::kOther),
                        .command = {"libtrain.so", "x"},
                        .module_loader = "/bin/accelerate-module"},
                       "command"),
              ElementsAre("command: mpirun -f H -ppn 4 -n 16 /bin/accelerate-module main "
                          "libtrain.so x"));
}

TEST(MpirunPlan, SpeaksBothDialects) {
  const TypedFlags typed = {
      {"mpirun_hostfile", {"H"}}, {"num_processes", {"16"}}, {"num_machines", {"4"}}};
  EXPECT_THAT(lines_of({.typed = typed, .machine = with_mpi(MpiFlavour::kOther)}, "command"),
              ElementsAre("command: mpirun -f H -ppn 4 -n 16 train --lr 0.1"));
  EXPECT_THAT(
      lines_of({.typed = typed, .machine = with_mpi(MpiFlavour::kOpenMpi)}, "command"),
      ElementsAre(StartsWith("command: mpirun --hostfile H --npernode 4 -n 16 --bind-to socket -x "
                             "ACCELERATE_DYNAMO_BACKEND -x ")));
  EXPECT_THAT(text_of({.typed = typed, .machine = with_mpi(MpiFlavour::kOther)}),
              HasSubstr("set MASTER_ADDR=node7\nset MASTER_PORT=29500\n"));
  EXPECT_THAT(error_of({.typed = typed}), HasSubstr("neither mpirun nor mpiexec"));
  EXPECT_EQ(mpi_flavour("mpirun (Open MPI) 5.0.7"), MpiFlavour::kOpenMpi);
  EXPECT_EQ(mpi_flavour("Intel(R) MPI Library for Linux* OS, Version 2021.9"), MpiFlavour::kOther);
}

TEST(MpirunPlan, TakesAFreePortOnOneMachine) {
  Machine machine = with_mpi(MpiFlavour::kOther);
  machine.is_port_in_use = [](uint16_t port) { return port == 4000; };
  machine.find_free_port = [] { return 4321; };
  TypedFlags typed = {{"mpirun_hostfile", {"H"}}, {"num_processes", {"2"}}};
  EXPECT_THAT(text_of({.typed = typed, .machine = machine}), HasSubstr("MASTER_PORT=4321\n"));
  typed["main_process_port"] = {"4001"};
  EXPECT_THAT(text_of({.typed = typed, .machine = machine}), HasSubstr("MASTER_PORT=4001\n"));
  typed["main_process_port"] = {"4000"};
  const auto plan = plan_of({.typed = typed, .machine = machine});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(to_text(*plan), HasSubstr("MASTER_PORT=4321\n"));
  EXPECT_THAT(plan->notes, ElementsAre(HasSubstr("port 4000 is in use")));
}

const Job kShell = {.kind = JobKind::kSlurmShell, .nodes = 2, .tasks = 8, .port = 20001};

TEST(SrunPlan, IsFoundByItselfInAnAllocation) {
  EXPECT_THAT(lines_of({.job = kShell}, "command"),
              ElementsAre("command: srun --nodes=2 --ntasks=8 --ntasks-per-node=4 "
                          "--kill-on-bad-exit=1 --label train --lr 0.1"));
  EXPECT_THAT(text_of({.typed = {{"slurm", {"false"}}}, .job = kShell}),
              StartsWith("kind: ranks of this machine"));
  EXPECT_THAT(error_of({.typed = {{"slurm", {"true"}}}}), HasSubstr("SLURM_JOB_ID"));
}

TEST(SrunPlan, StartsLaunchersWhereTheyHaveWorkToDo) {
  EXPECT_THAT(lines_of({.typed = {{"max_restarts", {"2"}}, {"dry_run", {"true"}}},
                        .job = kShell,
                        .typed_options = {"--max_restarts=2", "--dry_run"}},
                       "command"),
              ElementsAre("command: srun --nodes=2 --ntasks=2 --ntasks-per-node=1 "
                          "--kill-on-bad-exit=1 accelerate launch --max_restarts=2 "
                          "--num_processes=8 -- train --lr 0.1"));
  // The PATH may lack a build folder, and may have another program of that name.
  EXPECT_THAT(lines_of({.typed = {{"max_restarts", {"2"}}},
                        .job = kShell,
                        .typed_options = {"--max_restarts=2"},
                        .executable = "/opt/bin/accelerate"},
                       "command"),
              ElementsAre(HasSubstr("--kill-on-bad-exit=1 /opt/bin/accelerate launch")));
  // The job of such a launcher.
  const Job task = {.kind = JobKind::kSlurmTask,
                    .nodes = 2,
                    .tasks = 2,
                    .node_rank = 1,
                    .first_host = "n1",
                    .port = 20001};
  EXPECT_THAT(text_of({.typed = {{"num_processes", {"8"}}}, .job = task}),
              HasSubstr("this machine: 1\nrun: none\nrendezvous at: n1, port 20001\n"));
}

TEST(SrunPlan, ATaskOfManyBecomesTheProgram) {
  const Job task = {.kind = JobKind::kSlurmTask, .nodes = 2, .tasks = 8};
  EXPECT_THAT(text_of({.job = task}), StartsWith("kind: a rank that a scheduler started\n"));
}

TEST(DeepSpeedPlan, NamesHostsAndFilters) {
  TypedFlags typed = kTwoMachines;
  typed["use_deepspeed"] = {"true"};
  EXPECT_THAT(error_of({.typed = typed}), HasSubstr("--deepspeed_hostfile"));
  typed["deepspeed_hostfile"] = {"D"};
  typed["deepspeed_exclusion_filter"] = {"b:0"};
  Machine machine;
  machine.read_file = [](const std::string&) { return "a slots=4\nb slots=4\n"; };
  EXPECT_THAT(lines_of({.typed = typed, .machine = machine}, "command"),
              ElementsAre("command: deepspeed --hostfile D --no_local_rank --launcher pdsh "
                          "--exclude b:0 --master_addr 10.0.0.1 --master_port 29500 --no_python "
                          "train --lr 0.1"));
  EXPECT_THAT(lines_of({.typed = typed, .machine = machine}, "in .deepspeed_env"),
              testing::Contains("in .deepspeed_env: ACCELERATE_USE_DEEPSPEED=true"));
  typed["deepspeed_exclusion_filter"] = {"z"};
  EXPECT_THAT(error_of({.typed = typed, .machine = machine}), HasSubstr("no machine \"z\""));
  typed["deepspeed_exclusion_filter"] = {"b:0"};
  typed["deepspeed_multinode_launcher"] = {"nossh"};
  EXPECT_THAT(text_of({.typed = typed, .machine = machine}),
              HasSubstr("deepspeed --hostfile D --node_rank 0 --no_ssh"));
  typed["deepspeed_multinode_launcher"] = {"standard"};
  EXPECT_THAT(text_of({.typed = typed}), StartsWith("kind: ranks of several machines\n"));
}

TEST(Hostfile, IsReadAndFiltered) {
  const absl::StatusOr<Hosts> hosts = parse_hostfile("# us\na slots=2\n\n b  slots=3 # them\n");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ElementsAre(Pair("a", ElementsAre(0, 1)), Pair("b", ElementsAre(0, 1, 2))));
  EXPECT_THAT(*filter_hosts(*hosts, "b:0,2", ""), ElementsAre(Pair("b", ElementsAre(0, 2))));
  EXPECT_THAT(*filter_hosts(*hosts, "", "a@b:1"), ElementsAre(Pair("b", ElementsAre(0, 2))));
  EXPECT_FALSE(filter_hosts(*hosts, "a", "b").ok());
  EXPECT_FALSE(filter_hosts(*hosts, "c", "").ok());
  EXPECT_FALSE(filter_hosts(*hosts, "a:7", "").ok());
  EXPECT_FALSE(filter_hosts(*hosts, "", "a@b").ok());
  for (const char* bad : {"", "a", "a slots=0", "a slots=x", "a slots=1\na slots=1"}) {
    EXPECT_FALSE(parse_hostfile(bad).ok()) << bad;
  }
  // As DeepSpeed's own reader, which takes the beginning of a line, and comments of whole lines.
  EXPECT_THAT(*parse_hostfile("a slots=1 max_slots=2\r\n\tb\tslots=1# us\n  # c slots=1\n"),
              ElementsAre(Pair("a", ElementsAre(0)), Pair("b", ElementsAre(0))));
  EXPECT_THAT(*parse_hostfile("me@a#1 slots=1"), ElementsAre(Pair("me@a#1", ElementsAre(0))));
  EXPECT_THAT(*filter_hosts(*hosts, "b:0, 2", ""), ElementsAre(Pair("b", ElementsAre(0, 2))));
  const std::pair<const char*, const char*> wrong[] = {
      {"a slots = 4", "line 1, \"a slots = 4\", is not MACHINE slots=NUMBER"},
      {"a slots=1\nb:4", "line 2, \"b:4\", is not"},
      {"a slots=4.5", "line 1, \"a slots=4.5\""},
      {"a slots=1\n#\na slots=2", "line 3: a occurs twice"}};
  for (const auto& [text, reason] : wrong) {
    EXPECT_THAT(std::string(parse_hostfile(text).status().message()), HasSubstr(reason));
  }
}

// The first machine of an mpirun hostfile is where rank 0 listens.
TEST(MpirunPlan, ReadsTheFirstMachineAsItsToolsDo) {
  const auto machine_with = [](const std::string& hosts) {
    Machine machine = with_mpi(MpiFlavour::kOther);
    machine.read_file = [hosts](const std::string&) { return hosts; };
    return machine;
  };
  const TypedFlags typed = {
      {"mpirun_hostfile", {"H"}}, {"num_processes", {"16"}}, {"num_machines", {"4"}}};
  const std::pair<const char*, const char*> good[] = {{"# us\n\n  node7 slots=4\n", "node7"},
                                                      {"node7:4 ifname=eth0\n", "node7"},
                                                      {"me@node7 slots=4", "node7"},
                                                      {"^node1\nnode7\r\n", "node7"},
                                                      {"2001:db8::7 slots=4", "2001:db8::7"},
                                                      {"[fe80::1%eth0]:4\n", "fe80::1%eth0"},
                                                      {"node7#4", "node7"}};
  for (const auto& [hosts, first] : good) {
    EXPECT_THAT(text_of({.typed = typed, .machine = machine_with(hosts)}),
                HasSubstr(absl::StrCat("set MASTER_ADDR=", first, "\n")));
  }
  const std::pair<const char*, const char*> bad[] = {
      {"\nfe80::1:29500\n", "H:2: \"fe80::1:29500\" is an IPv6 address with a port"},
      {"+n0\n", "H:1: \"+n0\" is not the name of a machine"},
      {"node7,node8\n", "H:1: \"node7,node8\" is not the name of a machine"},
      {"node7:four", "H:1: \"node7:four\" has no port"},
      {"# nothing\n", "H names none; give --main_process_ip"}};
  for (const auto& [hosts, reason] : bad) {
    EXPECT_THAT(error_of({.typed = typed, .machine = machine_with(hosts)}), HasSubstr(reason));
  }
}

TEST(TpuPodPlan, TakesAListOfWorkers) {
  Machine machine;
  machine.device_kind = "tpu";
  const std::string config = "distributed_type: XLA\nnum_processes: 8\ntpu_use_cluster: true\n";
  for (const char* workers : {"[w1, w2, w3]", "w1, w2,w3", "['w1 ,w2', w3]"}) {
    EXPECT_THAT(
        lines_of({.config = absl::StrCat(config, "tpu_vm: ", workers, "\n"), .machine = machine},
                 "command"),
        ElementsAre(HasSubstr("gcloud compute ssh w1 "), HasSubstr(" ssh w2 "),
                    HasSubstr(" ssh w3 ")));
  }
  for (const char* workers : {"w1,,w2", "w1 w2", "w1;w2", "-w1"}) {
    EXPECT_THAT(
        error_of({.config = absl::StrCat(config, "tpu_vm: ", workers, "\n"), .machine = machine}),
        HasSubstr(absl::StrCat("c.yaml:4: tpu_vm: ", workers, ": ")));
  }
}

TEST(TpuPodPlan, RunsALineOnEachWorker) {
  Machine machine;
  machine.device_kind = "tpu";
  EXPECT_THAT(
      lines_of({.config = "distributed_type: XLA\nnum_processes: 8\ntpu_name: pod\ntpu_zone: z\n"
                          "tpu_use_cluster: true\ntpu_use_sudo: true\ncommands: [echo hi]\n"
                          "tpu_env: [A=1]\n",
                .machine = machine},
               "command"),
      ElementsAre("command: gcloud compute tpus tpu-vm ssh pod --zone z --command 'echo hi; sudo "
                  "env ACCELERATE_IN_TPU_POD=1 A=1 accelerate-launch --tpu --no_tpu_cluster "
                  "--num_machines 1 --mixed_precision no --dynamo_backend no --num_processes 8 "
                  "-- train --lr 0.1' --worker all"));
  EXPECT_THAT(
      error_of({.config = "distributed_type: XLA\nnum_processes: 8\ntpu_use_cluster: true\n",
                .machine = machine}),
      HasSubstr("which TPU pod?"));
}

// Worker and launcher here train alike.
TEST(TpuPodPlan, PassesPrecisionAndAccumulationOn) {
  Machine machine;
  machine.device_kind = "tpu";
  const std::string line =
      text_of({.typed = {{"gradient_accumulation_steps", {"4"}}, {"vm", {"w"}}},
               .config = "distributed_type: XLA\nnum_processes: 8\nmixed_precision: bf16\n"
                         "tpu_use_cluster: true\n",
               .machine = machine});
  EXPECT_THAT(line, HasSubstr("--mixed_precision bf16 --dynamo_backend no --num_processes 8 "
                              "--gradient_accumulation_steps 4 -- train"));
}

TEST(AgentPlan, SpeaksTorchrun) {
  const std::string alone =
      text_of({.typed = {{"standalone", {"true"}}, {"nnodes", {"1"}}, {"nproc_per_node", {"3"}}},
               .config = "distributed_type: MULTI_CPU\nnum_processes: 8\n"
                         "use_cpu: true\nmain_process_port: 5000\n"});
  EXPECT_THAT(alone, HasSubstr("kind: ranks of this machine\n"));
  EXPECT_THAT(alone, HasSubstr("ranks on this machine: 3\n"));
  EXPECT_THAT(alone, HasSubstr("port any\n"));
  const std::string two = text_of({.typed = {{"nnodes", {"2"}},
                                             {"nproc_per_node", {"3"}},
                                             {"machine_rank", {"1"}},
                                             {"main_process_ip", {"h"}}}});
  EXPECT_THAT(two, HasSubstr("kind: ranks of several machines\n"));
  EXPECT_THAT(two, HasSubstr("ranks on this machine: 3\n"));
  EXPECT_THAT(error_of({.typed = {{"standalone", {"true"}}, {"nnodes", {"2"}}}}),
              HasSubstr("--standalone is a run on this machine alone"));
  EXPECT_THAT(error_of({.typed = {{"standalone", {"true"}}, {"main_process_port", {"1"}}}}),
              HasSubstr("--standalone and --main_process_port=1 exclude each other"));
  EXPECT_THAT(error_of({.typed = {{"nproc_per_node", {"2"}}, {"num_processes", {"2"}}}}),
              HasSubstr("--nproc_per_node=2 and --num_processes=2 exclude each other"));
  EXPECT_THAT(error_of({.typed = {{"nproc_per_node", {"0"}}}}),
              HasSubstr("--nproc_per_node=0 is not a whole number from 1"));
  EXPECT_THAT(
      error_of(
          {.typed = {{"nnodes", {"2"}}, {"same_network", {"true"}}, {"rdzv_endpoint", {"h:1"}}}}),
      HasSubstr("--rdzv_endpoint=h:1 and --same_network exclude each other"));
}

TEST(SageMakerPlan, IsAJobDefinition) {
  const std::string config =
      "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\nec2_instance_type: ml.p3\n"
      "iam_role_name: r\nsagemaker_inputs_file: in.tsv\nnum_machines: 2\n";
  Machine machine;
  machine.read_file = [](const std::string&) { return "channel\tdata\ntrain\ts3://b/t\n"; };
  EXPECT_THAT(error_of({.config = config, .machine = machine}),
              HasSubstr("has no image_uri; name"));
  const auto shown =
      plan_of({.typed = {{"dry_run", {"true"}}}, .config = config, .machine = machine});
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_THAT(shown->notes, testing::Contains(HasSubstr("has no image_uri; name")));
  EXPECT_THAT(text_of({.config = config + "additional_args:\n  AlgorithmSpecification: "
                                          "{TrainingImage: other}\n",
                       .machine = machine}),
              HasSubstr("\"TrainingImage\": \"other\""));
  const std::string output = "additional_args:\n  OutputDataConfig: {S3OutputPath: s3://b/o}\n";
  EXPECT_THAT(text_of({.config = config + "image_uri: i\n" + output, .machine = machine}),
              HasSubstr("\"S3OutputPath\": \"s3://b/o\""));
  const auto plan = plan_of({.config = config + "image_uri: i\n", .machine = machine});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const nlohmann::ordered_json& job = std::get<SageMakerPlan>(plan->action).job;
  EXPECT_EQ(job["AlgorithmSpecification"]["TrainingImage"], "i");
  EXPECT_EQ(job["ResourceConfig"]["InstanceCount"], 2);
  EXPECT_EQ(job["HyperParameters"], (nlohmann::ordered_json{{"lr", "0.1"}}));
  EXPECT_EQ(job["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"], "s3://b/t");
  EXPECT_EQ(job["Environment"]["ACCELERATE_USE_SAGEMAKER"], "true");
  EXPECT_EQ(job["AlgorithmSpecification"]["ContainerArguments"],
            nlohmann::ordered_json::array({"--lr", "0.1"}));
  EXPECT_THAT(plan->notes,
              ElementsAre(HasSubstr("OutputDataConfig"), HasSubstr("iam_role_name is the name")));
}

TEST(SageMakerPlan, SaysThatVersionsChooseNoContainer) {
  const auto notes = [](const std::string& versions) {
    const auto plan =
        plan_of({.config = absl::StrCat("compute_environment: AMAZON_SAGEMAKER\n"
                                        "distributed_type: 'NO'\nec2_instance_type: t\n"
                                        "iam_role_name: arn:r\nimage_uri: i\n",
                                        versions)});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return absl::StrJoin(plan->notes, "\n");
  };
  // As HF Accelerate writes them into every file.
  EXPECT_THAT(notes("pytorch_version: 1.10.2\ntransformers_version: 4.17.0\npy_version: py38\n"),
              testing::Not(HasSubstr("version")));
  for (const char* other :
       {"pytorch_version: 2.1.0", "transformers_version: 4.36.0", "py_version: py310"}) {
    EXPECT_THAT(notes(absl::StrCat(other, "\n")),
                HasSubstr(absl::StrCat("c.yaml:6: ", other, " has no effect: image_uri names")));
  }
}

TEST(SageMakerPlan, SaysWhatBecomesOfAmazonsLibraries) {
  const auto config = [](const std::string& type) {
    return absl::StrCat("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: ", type,
                        "\nec2_instance_type: t\niam_role_name: arn:r\nimage_uri: i\n");
  };
  const auto data_parallel = plan_of({.config = config("DATA_PARALLEL")});
  ASSERT_TRUE(data_parallel.ok()) << data_parallel.status();
  EXPECT_THAT(data_parallel->notes,
              testing::Contains(HasSubstr("c.yaml:2: distributed_type: DATA_PARALLEL: the ranks of "
                                          "the job exchange by NCCL")));
  EXPECT_THAT(error_of({.config = config("MODEL_PARALLEL")}),
              HasSubstr("c.yaml:2: distributed_type: MODEL_PARALLEL is a library of Amazon's"));
  EXPECT_THAT(text_of({.config = config("'NO'")}), HasSubstr("\"TrainingImage\": \"i\""));
}

TEST(SageMakerPlan, HasTheMetricsOfATable) {
  const std::string config =
      "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\nec2_instance_type: ml.p3\n"
      "iam_role_name: r\nimage_uri: i\nsagemaker_metrics_file: metrics.tsv\n";
  Machine machine;
  machine.read_file = [](const std::string& path) -> std::optional<std::string> {
    return path.ends_with("metrics.tsv") ? "name\tregex\nloss\tloss: ([0-9.]+)\nrate\trate=(.*)\n"
                                         : "";
  };
  const auto plan = plan_of({.config = config, .machine = machine});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(
      std::get<SageMakerPlan>(plan->action).job["AlgorithmSpecification"]["MetricDefinitions"],
      (nlohmann::ordered_json{{{"Name", "loss"}, {"Regex", "loss: ([0-9.]+)"}},
                              {{"Name", "rate"}, {"Regex", "rate=(.*)"}}}));
  machine.read_file = [](const std::string&) { return "name\tregex\nloss\n"; };
  EXPECT_THAT(error_of({.config = config, .machine = machine}),
              HasSubstr("metrics.tsv:2: expected two columns"));
}

TEST(SageMakerPlan, HasTheRegionTheProfileAndTheKeysForAws) {
  const std::string config =
      "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\nec2_instance_type: ml.p3\n"
      "iam_role_name: arn:aws:iam::1:role/r\nimage_uri: i\nregion: eu-west-1\n";
  const TypedFlags keys = {{"aws_access_key_id", {"ID"}}, {"aws_secret_access_key", {"s3cret"}}};
  const auto with_profile = plan_of({.config = config + "profile: work\n"});
  ASSERT_TRUE(with_profile.ok()) << with_profile.status();
  EXPECT_THAT(std::get<SageMakerPlan>(with_profile->action).aws,
              ElementsAre("aws", "--region", "eu-west-1", "--profile", "work"));
  const auto with_keys = plan_of({.typed = keys, .config = config});
  ASSERT_TRUE(with_keys.ok()) << with_keys.status();
  const auto& plan = std::get<SageMakerPlan>(with_keys->action);
  EXPECT_THAT(plan.aws, ElementsAre("aws", "--region", "eu-west-1"));
  EXPECT_THAT(plan.environment, ElementsAre(Pair("AWS_ACCESS_KEY_ID", "ID"),
                                            Pair("AWS_SECRET_ACCESS_KEY", "s3cret")));
  EXPECT_THAT(to_text(*with_keys), Not(HasSubstr("s3cret")));
  EXPECT_THAT(error_of({.typed = keys, .config = config + "profile: work\n"}),
              HasSubstr("exclude each other"));
  EXPECT_THAT(error_of({.typed = {{"aws_access_key_id", {"ID"}}}, .config = config}),
              HasSubstr("give both"));
  EXPECT_THAT(error_of({.typed = keys}), HasSubstr("is for SageMaker jobs"));
}

TEST(SageMakerArguments, ArePairs) {
  EXPECT_EQ(*sagemaker_hyperparameters(
                {"--learning-rate", "1e-3", "-n", "1e3", "--flag", "False", "--name", "x"}),
            (nlohmann::ordered_json{
                {"learning_rate", 1e-3}, {"n", 1000}, {"flag", false}, {"name", "x"}}));
  for (std::vector<std::string> bad :
       {std::vector<std::string>{"--a"}, {"--a", "--b"}, {"x", "y"}, {"--a", "1", "--a", "2"}}) {
    EXPECT_FALSE(sagemaker_hyperparameters(bad).ok());
  }
}

}  // namespace
}  // namespace accelerate::launcher::plan
