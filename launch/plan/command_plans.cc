// Plans whose ranks another tool starts: deepspeed, mpirun, srun, gcloud.

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/environment.h"
#include "launch/plan/launch_plan.h"
#include "launch/settings/endpoint.h"
#include "launch/settings/validate.h"

namespace accelerate::launcher::plan {

using settings::Endpoint;
using settings::endpoint_of;
using settings::kUsualPort;
using settings::Provenance;
using settings::Settings;
namespace {

constexpr int kMaxSlots = 1024;

void add(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

const std::vector<int>* slots_of(const Hosts& hosts, absl::string_view name) {
  for (const auto& [host, slots] : hosts) {
    if (host == name) return &slots;
  }
  return nullptr;
}

// The part of the hosts that a filter names; no slots: all of the machine.
absl::StatusOr<Hosts> named(const Hosts& hosts, absl::string_view filter) {
  Hosts result;
  for (absl::string_view part : absl::StrSplit(filter, '@')) {
    const std::vector<absl::string_view> pair = absl::StrSplit(part, absl::MaxSplits(':', 1));
    const std::vector<int>* all = slots_of(hosts, pair[0]);
    if (all == nullptr) {
      return invalid("filter \"", filter, "\": the hostfile has no machine \"", pair[0], "\"");
    }
    std::vector<int> slots = *all;
    if (pair.size() == 2) {
      slots.clear();
      for (absl::string_view word : absl::StrSplit(pair[1], ',')) {
        int slot = 0;
        if (!absl::SimpleAtoi(word, &slot) || !absl::c_linear_search(*all, slot)) {
          return invalid("filter \"", filter, "\": ", pair[0], " has no slot \"", word, "\"");
        }
        slots.push_back(slot);
      }
    }
    result.emplace_back(std::string(pair[0]), std::move(slots));
  }
  return result;
}

// Lines that DeepSpeed can read: no empty values, nothing that a shell would take apart.
std::vector<std::string> variable_lines(const process::EnvironmentOverlay& environment) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : environment) {
    if (!value || value->empty()) continue;
    const std::string line = absl::StrCat(name, "=", *value);
    if (line.find_first_of(";\n<> ") == std::string::npos) lines.push_back(line);
  }
  return lines;
}

// The first machine of an mpirun hostfile. Its line begins with the name, in Open MPI's form
// ("user@node7 slots=4") or Intel MPI's and MPICH's ("node7:4"); `^` leaves a machine out.
absl::StatusOr<std::string> first_host(const std::string& path, const std::string& text) {
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty() || words[0][0] == '^') continue;
    const absl::string_view host = words[0].substr(words[0].find('@') + 1);
    const absl::StatusOr<Endpoint> endpoint =
        settings::parse_endpoint(host, settings::Ambiguous::kAddress);
    if (endpoint.ok()) return endpoint->host;
    return invalid(path, ":", number, ": ", endpoint.status().message(),
                   "; correct the line, or give --main_process_ip");
  }
  return "";
}

// The workers of a pod: --vm is repeated, or has several between commas.
absl::StatusOr<std::vector<std::string>> worker_names(const Settings& settings) {
  std::vector<std::string> names;
  for (const std::string& text : settings.texts("vm")) {
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      const absl::string_view name = absl::StripAsciiWhitespace(part);
      ACCELERATE_RETURN_IF_ERROR(in_file(settings.describe("vm"), settings::check_host(name)));
      names.emplace_back(name);
    }
  }
  return names;
}

// Whether the settings need a launcher on each machine.
bool needs_launchers(const Settings& settings) {
  return settings.number("max_restarts") > 0 || settings.is_set("log_dir") ||
         settings.text("tee") != "0" || settings.text("redirects") != "0" ||
         settings.text("rdzv_backend") != "static" || settings.is_set("local_ranks_filter") ||
         settings.is_set("kill_grace") || settings.flag("enable_cpu_affinity");
}

// The command of a worker: the variables, then the launcher for the cores of that worker.
absl::StatusOr<std::string> worker_line(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  std::vector<std::string> words;
  if (settings.flag("tpu_use_sudo")) words.push_back("sudo");
  add(words, {"env", "ACCELERATE_IN_TPU_POD=1"});
  if (settings.flag("debug")) words.push_back("ACCELERATE_DEBUG_MODE=true");
  for (const std::string& pair : settings.texts("env")) {
    if (pair.find('=') == std::string::npos || pair[0] == '=') {
      return invalid("--env ", pair, " is not NAME=VALUE");
    }
    words.push_back(pair);
  }
  // Without --no_tpu_cluster each worker would start the pod again.
  add(words, {"accelerate-launch", "--tpu", "--no_tpu_cluster", "--num_machines", "1",
              "--mixed_precision", settings.text("mixed_precision"), "--dynamo_backend", "no",
              "--num_processes", absl::StrCat(settings.number("num_processes"))});
  if (settings.is_set("gradient_accumulation_steps")) {
    add(words, {"--gradient_accumulation_steps",
                absl::StrCat(settings.number("gradient_accumulation_steps"))});
  }
  if (settings.flag("module")) {
    words.push_back("--module");
    if (settings.is_set("main_training_function")) {
      add(words, {"--main_training_function", settings.text("main_training_function")});
    }
  }
  words.push_back("--");
  add(words, inputs.command);

  std::vector<std::string> steps = settings.texts("commands");
  if (settings.is_set("command_file")) {
    ACCELERATE_ASSIGN_OR_RETURN(const std::string text,
                                named_file(inputs, settings.text("command_file")));
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
      steps.emplace_back(line);
    }
  }
  steps.push_back(shell_line(words));
  return absl::StrJoin(steps, "; ");
}

}  // namespace

absl::StatusOr<Hosts> parse_hostfile(absl::string_view text) {
  Hosts hosts;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    // A comment may follow the number without a blank.
    absl::string_view count = words.size() > 1 ? words[1].substr(0, words[1].find('#')) : "";
    int slots = 0;
    if (!absl::ConsumePrefix(&count, "slots=") || !absl::SimpleAtoi(count, &slots) || slots < 1 ||
        slots > kMaxSlots) {
      return invalid("line ", number, ", \"", line, "\", is not MACHINE slots=NUMBER, with 1 to ",
                     kMaxSlots, " slots");
    }
    if (slots_of(hosts, words[0]) != nullptr) {
      return invalid("line ", number, ": ", words[0], " occurs twice");
    }
    hosts.emplace_back(std::string(words[0]), std::vector<int>());
    for (int slot = 0; slot < slots; ++slot) hosts.back().second.push_back(slot);
  }
  if (hosts.empty()) return absl::InvalidArgumentError("no machine is in it");
  return hosts;
}

absl::StatusOr<Hosts> filter_hosts(const Hosts& hosts, absl::string_view include,
                                   absl::string_view exclude) {
  if (include.empty() && exclude.empty()) return hosts;
  if (!include.empty() && !exclude.empty()) {
    return absl::InvalidArgumentError("an inclusion and an exclusion filter exclude each other");
  }
  if (!include.empty()) return named(hosts, include);
  ACCELERATE_ASSIGN_OR_RETURN(const Hosts gone, named(hosts, exclude));
  Hosts rest;
  for (auto [host, slots] : hosts) {
    if (const std::vector<int>* out = slots_of(gone, host)) {
      std::erase_if(slots, [&](int slot) { return absl::c_linear_search(*out, slot); });
    }
    if (!slots.empty()) rest.emplace_back(host, std::move(slots));
  }
  if (rest.empty()) return absl::InvalidArgumentError("the exclusion filter leaves no machine");
  return rest;
}

absl::StatusOr<CommandPlan> plan_deepspeed(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  if (!settings.is_set("deepspeed_hostfile")) {
    return absl::InvalidArgumentError(
        "several machines under DeepSpeed's launcher need --deepspeed_hostfile; without one, start "
        "accelerate on each machine with --deepspeed_multinode_launcher standard");
  }
  const std::string hostfile = settings.text("deepspeed_hostfile");
  // One that is not there is told by deepspeed itself, which may look elsewhere.
  if (const auto text = inputs.machine.read_file(hostfile)) {
    ACCELERATE_ASSIGN_OR_RETURN(const Hosts hosts, in_file(hostfile, parse_hostfile(*text)));
    ACCELERATE_RETURN_IF_ERROR(filter_hosts(hosts, settings.text("deepspeed_inclusion_filter"),
                                            settings.text("deepspeed_exclusion_filter"))
                                   .status());
  }
  const std::string launcher = settings.is_set("deepspeed_multinode_launcher")
                                   ? settings.text("deepspeed_multinode_launcher")
                                   : "pdsh";
  std::vector<std::string> words = {"deepspeed", "--hostfile", hostfile};
  if (launcher == "nossh") {
    if (!settings.is_set("machine_rank")) {
      return absl::InvalidArgumentError(
          "the launcher nossh is started on every machine; give --machine_rank, 0 on the first");
    }
    add(words, {"--node_rank", absl::StrCat(settings.number("machine_rank")), "--no_ssh"});
  } else {
    add(words, {"--no_local_rank", "--launcher", launcher});
  }
  if (settings.is_set("deepspeed_exclusion_filter")) {
    add(words, {"--exclude", settings.text("deepspeed_exclusion_filter")});
  } else if (settings.is_set("deepspeed_inclusion_filter")) {
    add(words, {"--include", settings.text("deepspeed_inclusion_filter")});
  } else {
    add(words, {"--num_gpus",
                absl::StrCat(settings.number("num_processes") / settings.number("num_machines"))});
  }
  ACCELERATE_ASSIGN_OR_RETURN(Endpoint endpoint, endpoint_of(settings));
  if (!endpoint.host.empty()) add(words, {"--master_addr", endpoint.host});
  uint16_t port = endpoint.port.value_or(kUsualPort);
  // All machines are told one number, so it is chosen here.
  if (port == 0) port = inputs.machine.find_free_port();
  add(words, {"--master_port", absl::StrCat(port), "--no_python"});
  add(words, program_words(inputs));

  CommandPlan plan = {
      .kind = "deepspeed",
      .commands = {std::move(words)},
      .environment = settings::child_environment(settings, inputs.machine, inputs.environment)};
  plan.variable_files[".deepspeed_env"] = variable_lines(plan.environment);
  plan.environment.merge(process::without_outer_run());
  return plan;
}

absl::StatusOr<CommandPlan> plan_mpirun(const PlanInputs& inputs, std::vector<std::string>* notes) {
  const Settings& settings = inputs.settings;
  const std::optional<settings::MpiProgram> mpi = inputs.machine.find_mpi();
  if (!mpi) {
    return absl::NotFoundError(
        "neither mpirun nor mpiexec is in PATH; install Open MPI, Intel MPI or MVAPICH, or leave "
        "--mpirun_hostfile out");
  }
  const std::string hostfile = settings.text("mpirun_hostfile");
  const int64_t machines = settings.number("num_machines");
  const int64_t processes = settings.number("num_processes");
  ACCELERATE_ASSIGN_OR_RETURN(Endpoint endpoint, endpoint_of(settings));
  if (endpoint.host.empty() && machines > 1) {
    ACCELERATE_ASSIGN_OR_RETURN(
        endpoint.host, first_host(hostfile, inputs.machine.read_file(hostfile).value_or("")));
    if (endpoint.host.empty()) {
      return invalid(machines, " machines need a rendezvous address, and ", hostfile,
                     " names none; give --main_process_ip");
    }
  }

  CommandPlan plan = {
      .kind = "mpirun",
      .environment = settings::child_environment(settings, inputs.machine, inputs.environment)};
  plan.environment.merge(process::without_outer_run());
  if (processes > 1) {
    uint16_t port = endpoint.port.value_or(machines == 1 ? 0 : kUsualPort);
    if (machines == 1) port = free_or_any(port, inputs.machine, notes);
    if (port == 0) port = inputs.machine.find_free_port();
    plan.environment[env::kMasterAddr] = endpoint.host.empty() ? "127.0.0.1" : endpoint.host;
    plan.environment[env::kMasterPort] = absl::StrCat(port);
  }

  const std::string per_machine = absl::StrCat(processes / machines);
  // Where neither the user nor devices say how many, there is a rank on every host of the file.
  const bool is_given = settings.provenance("num_processes") > settings::Provenance::kMachine;
  const bool has_devices = inputs.machine.devices > 0 && !settings.flag("cpu");
  std::vector<std::string> total;
  if (is_given || has_devices || processes > machines) total = {"-n", absl::StrCat(processes)};
  std::vector<std::string> words;
  if (mpi->flavour == settings::MpiFlavour::kOpenMpi) {
    words = {mpi->name, "--hostfile", hostfile, "--npernode", per_machine};
    add(words, total);
    add(words, {"--bind-to", "socket"});
    // Open MPI hands nothing on to other machines unless it is told to.
    for (const auto& [name, value] : plan.environment) {
      if (value) add(words, {"-x", name});
    }
  } else {
    words = {mpi->name, "-f", hostfile, "-ppn", per_machine};
    add(words, total);
  }
  add(words, program_words(inputs));
  plan.commands.push_back(std::move(words));
  return plan;
}

absl::StatusOr<CommandPlan> plan_srun(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  if (inputs.job.kind != settings::JobKind::kSlurmShell) {
    return absl::InvalidArgumentError(
        "--slurm: not inside the script or shell of a Slurm job (SLURM_JOB_ID is not set); start "
        "it "
        "with sbatch or salloc");
  }
  const int64_t nodes = settings.provenance("num_machines") == Provenance::kDefault
                            ? inputs.job.nodes
                            : settings.number("num_machines");
  if (nodes > inputs.job.nodes) {
    return invalid(settings.describe("num_machines"), " is more than the job has, ",
                   inputs.job.nodes);
  }
  int64_t processes = settings.number("num_processes");
  // Counted for one machine.
  if ((settings.provenance("num_processes") == Provenance::kMachine ||
       settings.is_set("nproc_per_node")) &&
      settings.number("num_machines") == 1) {
    processes *= nodes;
  }
  if (processes % nodes != 0) {
    return invalid(processes, " ranks cannot be divided evenly over ", nodes,
                   " machines; give a --num_processes that ", nodes, " divides");
  }

  CommandPlan plan = {.kind = "srun", .environment = process::without_outer_run()};
  std::vector<std::string> words = {"srun", absl::StrCat("--nodes=", nodes)};
  if (needs_launchers(settings)) {
    add(words, {absl::StrCat("--ntasks=", nodes), "--ntasks-per-node=1", "--kill-on-bad-exit=1",
                inputs.executable, "launch"});
    for (const std::string& option : inputs.typed_options) {
      // Counts hold for the whole job and are given anew, and the launcher of a machine must not
      // call srun again.
      const bool is_ours = absl::StartsWith(option, "--num_processes=") ||
                           absl::StartsWith(option, "--nproc_per_node=") ||
                           absl::StartsWith(option, "--num_machines=") || option == "--slurm" ||
                           option == "--dry_run";
      if (!is_ours) words.push_back(option);
    }
    words.push_back(absl::StrCat("--num_processes=", processes));
    words.push_back("--");
    add(words, inputs.command);
  } else {
    add(words,
        {absl::StrCat("--ntasks=", processes),
         absl::StrCat("--ntasks-per-node=", processes / nodes), "--kill-on-bad-exit=1", "--label"});
    plan.environment.merge(
        settings::child_environment(settings, inputs.machine, inputs.environment));
    ACCELERATE_ASSIGN_OR_RETURN(Endpoint endpoint, endpoint_of(settings));
    if (!endpoint.host.empty()) plan.environment[env::kMasterAddr] = endpoint.host;
    if (endpoint.port.value_or(0) != 0) {
      plan.environment[env::kMasterPort] = absl::StrCat(*endpoint.port);
    }
    add(words, program_words(inputs));
  }
  plan.commands.push_back(std::move(words));
  return plan;
}

absl::StatusOr<CommandPlan> plan_tpu_pod(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<std::string> machines, worker_names(settings));
  if (machines.empty() && !settings.is_set("tpu_name")) {
    return absl::InvalidArgumentError(
        "which TPU pod? set tpu_name and tpu_zone in the configuration file, or give --vm for each "
        "worker");
  }
  ACCELERATE_ASSIGN_OR_RETURN(std::string line, worker_line(inputs));
  std::vector<std::string> zone;
  if (settings.is_set("tpu_zone")) zone = {"--zone", settings.text("tpu_zone")};

  CommandPlan plan = {.kind = "tpu pod"};
  auto add_command = [&](std::vector<std::string> words, const std::vector<std::string>& last) {
    add(words, zone);
    add(words, {"--command", line});
    add(words, last);
    plan.commands.push_back(std::move(words));
  };
  for (const std::string& machine : machines)
    add_command({"gcloud", "compute", "ssh", machine}, {});
  if (machines.empty()) {
    add_command({"gcloud", "compute", "tpus", "tpu-vm", "ssh", settings.text("tpu_name")},
                {"--worker", "all"});
  }
  return plan;
}

}  // namespace accelerate::launcher::plan
