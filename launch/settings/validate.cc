#include "launch/settings/validate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"
#include "accelerate/pipeline/costs.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/pipeline/schedule_text.h"
#include "launch/settings/endpoint.h"

namespace accelerate::launcher::settings {
namespace {

// Those that multiply to the number of ranks.
constexpr const char* kMeshSizes[] = {
    "parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size",
    "parallelism_config_tp_size",           "parallelism_config_cp_size",
    "parallelism_config_sp_size",           "parallelism_config_pp_size"};

bool is_given(const Settings& settings, absl::string_view name) {
  const Provenance provenance = settings.provenance(name);
  return provenance == Provenance::kFlag || provenance == Provenance::kConfigFile;
}

absl::Status check_range(const Settings& settings, absl::string_view name, int64_t min,
                         int64_t max) {
  if (!settings.is_set(name)) return absl::OkStatus();
  const int64_t number = settings.number(name);
  if (number >= min && number <= max) return absl::OkStatus();
  return invalid(settings.describe(name), " is not a whole number from ", min, " to ", max);
}

absl::Status check_ranges(const Settings& settings) {
  for (const Setting& row : all_settings()) {
    if (!row.has_range()) continue;
    ACCELERATE_RETURN_IF_ERROR(check_range(settings, row.name, row.least, row.most));
  }
  if (settings.real("monitor_interval") <= 0) {
    return invalid(settings.describe("monitor_interval"), " is not above 0");
  }
  return absl::OkStatus();
}

absl::Status check_kinds(const Settings& settings) {
  std::vector<std::string> typed;
  for (const char* name : {"cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp"}) {
    if (settings.is_typed(name) && settings.flag(name)) typed.push_back(absl::StrCat("--", name));
  }
  if (typed.size() > 1) {
    return invalid(absl::StrJoin(typed, " and "),
                   " exclude each other; choose one of --cpu, --multi_gpu, --tpu, "
                   "--use_deepspeed, --use_fsdp");
  }
  if (settings.flag("module") && settings.flag("no_python")) {
    return invalid("--module and --no_python exclude each other; leave --no_python out");
  }
  return absl::OkStatus();
}

absl::Status check_simulation(const Settings& settings) {
  for (const char* name : {"tokens_per_sample", "csv"}) {
    if (settings.is_set(name)) {
      return invalid("--", name, " has no meaning without --sweep or --fit");
    }
  }
  if (!settings.is_set("simulate")) {
    for (const char* name : {"simulate_seed", "simulate_numerics", "simulate_unknown_values",
                             "simulate_fold", "report", "seeds", "no_detect", "faults", "timeouts",
                             "semantics", "log", "replay", "twice"}) {
      if (setting(name).is_boolean() ? settings.flag(name) : settings.is_set(name)) {
        return invalid("--", name, " has no meaning without --simulate");
      }
    }
    return absl::OkStatus();
  }
  if (settings.is_typed("num_processes")) {
    return invalid(settings.describe("simulate"),
                   " and --num_processes exclude each other: a simulated "
                   "cluster runs in one process and takes its number of ranks from the topology");
  }
  for (const char* name :
       {"main_process_port", "main_process_ip", "num_machines", "machine_rank", "mpirun_hostfile",
        "slurm", "nnodes", "rdzv_endpoint", "nproc_per_node", "standalone"}) {
    if (settings.is_typed(name) && settings.text(name) != "false") {
      return invalid(settings.describe("simulate"), " and --", name,
                     " exclude each other: a simulated cluster is one process");
    }
  }
  uint64_t seed = 0;
  if (settings.is_set("simulate_seed") &&
      !absl::SimpleAtoi(settings.text("simulate_seed"), &seed)) {
    return invalid(settings.describe("simulate_seed"), " is not a whole number from 0 to ",
                   UINT64_MAX);
  }
  if (settings.is_set("replay") && settings.is_set("log") &&
      settings.text("replay") == settings.text("log")) {
    return invalid(
        "--log and --replay name the same file, which would be lost: the run that follows a log "
        "writes one of its own");
  }
  if (settings.is_set("seeds")) {
    if (settings.is_typed("simulate_seed")) {
      return invalid("--simulate_seed and --seeds exclude each other: one seed, or several");
    }
    if (settings.is_set("replay")) {
      return invalid("--replay and --seeds exclude each other: a log is of one seed");
    }
    ACCELERATE_RETURN_IF_ERROR(parse_seeds(settings.text("seeds")).status());
  }
  if (!settings.is_set("no_detect")) return absl::OkStatus();
  const std::string detectors = settings.text("no_detect");
  for (const absl::string_view name : absl::StrSplit(detectors, ',')) {
    // The names are those of simulator/run/simulate.cc.
    if (name == "races" || name == "leaks" || name == "drift") continue;
    return invalid(settings.describe("no_detect"),
                   ": expected races, leaks or drift, several between commas, not \"", name, "\"");
  }
  return absl::OkStatus();
}

// A simulated cluster is what its text says. What a file, a variable or a scheduler says about this
// machine, its devices and its job is about real runs.
void leave_machine_out(Settings& settings) {
  constexpr absl::string_view kOfMachine[] = {"cpu",     "multi_gpu",      "num_processes",
                                              "gpu_ids", "nproc_per_node", "enable_cpu_affinity"};
  for (const Setting& row : all_settings()) {
    const bool is_of_machine = row.group == Group::kMachines || row.group == Group::kTpu ||
                               std::ranges::count(kOfMachine, row.name) > 0;
    // --multi_gpu asks for nothing that the cluster does not say.
    const bool stays = settings.is_typed(row.name) && row.name != absl::string_view("multi_gpu");
    if (is_of_machine && !stays) settings.forget(row.name);
  }
}

// Fills in the scheduler's values for this machine and the job where the user gave none.
void take_job(Settings& settings, const Job& job) {
  const bool is_agent_of_many =
      job.nodes > 1 && (job.kind == JobKind::kSageMaker ||
                        (job.kind == JobKind::kSlurmTask && job.tasks == job.nodes));
  if (!is_agent_of_many || is_given(settings, "num_machines") || settings.is_set("nnodes")) return;
  const auto offer = [&](const char* name, const std::string& text, const char* sagemaker,
                         const char* slurm) {
    if (is_given(settings, name)) return;
    const std::string variable = job.kind == JobKind::kSageMaker ? sagemaker : slurm;
    settings.set(name, text, Provenance::kEnvironment,
                 job.hosts_file.empty() ? variable : job.hosts_file);
  };
  offer("num_machines", absl::StrCat(job.nodes), "SM_HOSTS", "SLURM_NNODES");
  offer("machine_rank", absl::StrCat(job.node_rank), "SM_CURRENT_HOST", "SLURM_NODEID");
  offer("main_process_ip", job.first_host, "SM_HOSTS", "SLURM_JOB_NODELIST");
  offer("main_process_port", absl::StrCat(job.port), "SM_HOSTS", "SLURM_JOB_ID");
}

absl::Status take_nodes(Settings& settings) {
  if (!settings.is_set("nnodes")) {
    if (!settings.is_set("num_machines")) settings.set("num_machines", "1", Provenance::kDefault);
    return absl::OkStatus();
  }
  const std::vector<std::string> ends = absl::StrSplit(settings.text("nnodes"), ':');
  int min = 0;
  int max = 0;
  if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &min) ||
      !absl::SimpleAtoi(ends.back(), &max) || min < 1 || max < min) {
    return invalid(settings.describe("nnodes"),
                   " is neither a number of machines nor MIN:MAX, as in 2:4");
  }
  if (is_given(settings, "num_machines") && settings.number("num_machines") != max) {
    return invalid(settings.describe("nnodes"), " and ", settings.describe("num_machines"),
                   " contradict each other; leave one out");
  }
  if (min != max && !is_elastic(settings)) {
    return invalid(settings.describe("nnodes"),
                   ": a number of machines that changes needs --rdzv_backend c10d");
  }
  settings.set("num_machines", absl::StrCat(max), settings.provenance("nnodes"), "--nnodes");
  return absl::OkStatus();
}

// --standalone, --nproc_per_node and --same_network, which say about machines what other settings
// say too.
absl::Status check_machines(Settings& settings) {
  if (settings.is_typed("same_network") && settings.is_set("rdzv_endpoint")) {
    return invalid(settings.describe("rdzv_endpoint"),
                   " and --same_network exclude each other: with it the rendezvous is at "
                   "--main_process_ip and --main_process_port");
  }
  if (settings.flag("standalone")) {
    for (const char* name : {"rdzv_endpoint", "main_process_ip", "main_process_port"}) {
      if (settings.is_typed(name)) {
        return invalid("--standalone and ", settings.describe(name),
                       " exclude each other: the run is on this machine alone, at any "
                       "free port");
      }
    }
    if (settings.number("num_machines") > 1) {
      return invalid("--standalone is a run on this machine alone, and ",
                     settings.describe("num_machines"), " asks for more; leave one out");
    }
    settings.set("num_machines", "1", Provenance::kFlag, "--standalone");
    settings.set("main_process_ip", "", Provenance::kFlag, "--standalone");
    settings.set("main_process_port", "0", Provenance::kFlag, "--standalone");
  }
  if (!settings.is_set("nproc_per_node")) return absl::OkStatus();
  if (settings.is_typed("num_processes")) {
    return invalid(settings.describe("nproc_per_node"), " and ", settings.describe("num_processes"),
                   " exclude each other; leave one out");
  }
  ACCELERATE_RETURN_IF_ERROR(check_range(settings, "nproc_per_node", 1, process::kMaxProcesses));
  settings.set("num_processes",
               absl::StrCat(settings.number("nproc_per_node") * settings.number("num_machines")),
               Provenance::kFlag, "--nproc_per_node");
  return absl::OkStatus();
}

// The keys are for the program aws, which starts a SageMaker job.
absl::Status check_credentials(const Settings& settings) {
  const char* const names[] = {"aws_access_key_id", "aws_secret_access_key"};
  for (const char* name : names) {
    if (!settings.is_typed(name)) continue;
    if (!settings.is_sagemaker()) {
      return invalid("--", name,
                     " is for SageMaker jobs, and no configuration file of one is "
                     "given; leave it out");
    }
    if (settings.is_set("profile")) {
      return invalid("--", name, " and the profile of ", settings.config_path(),
                     " exclude each other; leave one out");
    }
    if (!settings.is_set(names[0]) || !settings.is_set(names[1])) {
      return invalid("--aws_access_key_id and --aws_secret_access_key belong together; give both");
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> device_ids(const Settings& settings) {
  const std::string ids = settings.text("gpu_ids");
  if (ids.empty() || ids == "all") return {};
  return absl::StrSplit(ids, ',', absl::SkipWhitespace());
}

absl::Status take_processes(Settings& settings, const Machine& machine, const Job& job) {
  // HF Accelerate's files have -1 where the number comes from elsewhere.
  if (settings.is_set("num_processes") && settings.number("num_processes") == -1 &&
      settings.provenance("num_processes") == Provenance::kConfigFile) {
    settings.set("num_processes", "", Provenance::kDefault);
  }
  if (settings.number("num_processes") != 0 || settings.is_typed("num_processes")) {
    return absl::OkStatus();
  }
  if (settings.is_set("simulate") || settings.is_sagemaker()) {
    // The program finds its ranks itself, the job's machines theirs.
    const int64_t ranks = settings.is_sagemaker() ? settings.number("num_machines") : 1;
    settings.set("num_processes", absl::StrCat(ranks), Provenance::kDefault);
    return absl::OkStatus();
  }
  if (settings.has_config()) {
    return invalid(settings.config_path(), " has no num_processes; give --num_processes");
  }
  int per_node = machine.devices;
  std::string where = "devices of this machine";
  if (job.kind == JobKind::kSlurmShell && job.tasks >= job.nodes && job.nodes > 0) {
    settings.set("num_processes", absl::StrCat(job.tasks), Provenance::kEnvironment,
                 "SLURM_NTASKS");
    return absl::OkStatus();
  }
  if (job.devices_per_node > 0) per_node = job.devices_per_node;
  if (const size_t ids = device_ids(settings).size(); ids > 0) {
    per_node = static_cast<int>(ids);
    where = "devices of --gpu_ids";
  }
  if (settings.flag("cpu") || per_node == 0) {
    per_node = 1;
    where = "one rank a machine";
  }
  settings.set("num_processes", absl::StrCat(per_node * settings.number("num_machines")),
               Provenance::kMachine, where);
  return absl::OkStatus();
}

absl::Status check_ranks(Settings& settings, const Machine& machine) {
  const int64_t processes = settings.number("num_processes");
  const int64_t machines = settings.number("num_machines");
  if (settings.flag("multi_gpu") && processes < 2) {
    return invalid(settings.describe("multi_gpu"), " needs at least 2 ranks, not ",
                   settings.describe("num_processes"), "; give more ranks, or leave ",
                   settings.is_typed("multi_gpu") ? "--multi_gpu" : "the kind", " out");
  }
  if (processes % machines != 0) {
    return invalid(processes, " ranks cannot be divided evenly over ", machines,
                   " machines; give a --num_processes that ", machines, " divides");
  }
  if (processes / machines > process::kMaxProcesses) {
    return invalid(settings.describe("num_processes"), " is more than ", process::kMaxProcesses,
                   " ranks on one machine: not a whole number from 1 to ", process::kMaxProcesses);
  }
  const std::vector<std::string> ids = device_ids(settings);
  if (settings.flag("multi_gpu") && machines == 1 && ids.size() == 1) {
    return invalid(settings.describe("gpu_ids"), ": ", processes,
                   " ranks need at least two devices; list them, or give "
                   "--gpu_ids all");
  }
  const bool is_device_run = !settings.flag("cpu") && machine.devices > 1 && processes > 1;
  if (is_device_run && !settings.flag("multi_gpu") && !settings.flag("tpu") &&
      !settings.flag("use_deepspeed") && !settings.flag("use_fsdp") &&
      !settings.flag("use_megatron_lm")) {
    settings.set("multi_gpu", "true", Provenance::kMachine, "several devices");
  }
  return absl::OkStatus();
}

// Whether replicas take the ranks that are left, as beside ranks along sp without batches of their
// own.
bool fills_replicas(const Settings& settings) {
  return settings.number("parallelism_config_sp_size") > 1 && settings.number(kMeshSizes[0]) == 1 &&
         settings.number(kMeshSizes[1]) == 1;
}

constexpr char kSchedule[] = "parallelism_config_pp_schedule";
constexpr char kSplitPoints[] = "parallelism_config_pp_split_points";
constexpr char kStageBytes[] = "parallelism_config_pp_stage_bytes";
constexpr int kColumns = 120;

absl::StatusOr<pipeline::Schedule> schedule_of(const Settings& settings) {
  const auto number = [&settings](absl::string_view name) {
    return static_cast<int>(settings.number(absl::StrCat("parallelism_config_pp_", name)));
  };
  const std::string place = settings.describe(kSchedule);
  ACCELERATE_ASSIGN_OR_RETURN(
      const pipeline::ScheduleKind kind,
      in_file(place, pipeline::parse_schedule_kind(settings.text(kSchedule))));
  return in_file(place, pipeline::make_schedule(kind, {.ranks = number("size"),
                                                       .stages_per_rank = number("stages_per_rank"),
                                                       .micro_batches = number("micro_batches")}));
}

absl::Status check_split_points(const Settings& settings, int stages) {
  if (!settings.is_set(kSplitPoints)) return absl::OkStatus();
  const std::vector<std::string> names = absl::StrSplit(settings.text(kSplitPoints), ',');
  if (names.size() + 1 == static_cast<size_t>(stages)) return absl::OkStatus();
  return invalid(settings.describe(kSplitPoints), ": there are ", stages,
                 " stages, which begin at ", stages - 1,
                 " parts besides the first one; name so many");
}

// By stage; empty: nothing is known.
absl::StatusOr<std::vector<int64_t>> stage_bytes_of(const Settings& settings, int stages) {
  std::vector<int64_t> bytes;
  if (!settings.is_set(kStageBytes)) return bytes;
  const std::vector<std::string> sizes = absl::StrSplit(settings.text(kStageBytes), ',');
  for (const std::string& text : sizes) {
    const std::optional<int64_t> size = parse_byte_size(text);
    if (!size) {
      return invalid(settings.describe(kStageBytes),
                     ": expected sizes with a unit, as in 1.5GiB,1GiB");
    }
    bytes.push_back(*size);
  }
  if (bytes.size() == 1) bytes.resize(static_cast<size_t>(stages), bytes[0]);
  if (bytes.size() == static_cast<size_t>(stages)) return bytes;
  return invalid(settings.describe(kStageBytes), ": expected one size, or one for each of ", stages,
                 " stages");
}

absl::Status check_engines(const Settings& settings, const Machine& machine) {
  if (settings.flag("use_fsdp") && settings.flag("fsdp_cpu_ram_efficient_loading") &&
      !settings.flag("fsdp_sync_module_states")) {
    return invalid(
        "fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: only one rank reads the "
        "weights; give --fsdp_sync_module_states true or --fsdp_cpu_ram_efficient_loading false");
  }
  if (settings.flag("use_fsdp") && settings.flag("fsdp_activation_checkpointing_offload") &&
      (!settings.flag("fsdp_activation_checkpointing") || settings.text("fsdp_version") != "2")) {
    return invalid(settings.describe("fsdp_activation_checkpointing_offload"),
                   " needs --fsdp_activation_checkpointing true and --fsdp_version 2");
  }
  // A plan that is only shown may be another machine's.
  if (settings.flag("tpu") && machine.device_kind != "tpu" && !settings.is_set("simulate") &&
      !settings.flag("tpu_use_cluster") && !settings.flag("dry_run")) {
    return invalid("--tpu: this machine has no TPU (no /dev/accel0); leave --tpu out");
  }
  return absl::OkStatus();
}

absl::Status check_rendezvous(const Settings& settings) {
  ACCELERATE_RETURN_IF_ERROR(endpoint_of(settings).status());
  if (settings.is_set("local_addr")) {
    ACCELERATE_RETURN_IF_ERROR(
        in_file(settings.describe("local_addr"), check_host(settings.text("local_addr"))));
  }
  const std::string backend = settings.text("rdzv_backend");
  if (backend != "static" && backend != "c10d") {
    return invalid(settings.describe("rdzv_backend"),
                   ": expected static, or c10d for machines that come and go");
  }
  return absl::OkStatus();
}

}  // namespace

NodeRange node_range(const Settings& settings) {
  const int machines = static_cast<int>(settings.number("num_machines"));
  NodeRange range{machines, machines};
  if (settings.is_set("nnodes")) {
    const std::vector<std::string> ends = absl::StrSplit(settings.text("nnodes"), ':');
    (void)absl::SimpleAtoi(ends.front(), &range.min);
  }
  return range;
}

absl::StatusOr<SeedRange> parse_seeds(absl::string_view text) {
  SeedRange range;
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  if (!absl::SimpleAtoi(ends.first, &range.first) || !absl::SimpleAtoi(ends.second, &range.end)) {
    return invalid("--seeds=", text,
                   ": expected FIRST:END as in 0:50, which are the seeds 0 to 49");
  }
  if (range.first < range.end) return range;
  return invalid("--seeds=", text, ": there is no seed from ", range.first, " to the one before ",
                 range.end, "; expected FIRST:END as in 0:50");
}

bool is_elastic(const Settings& settings) { return settings.text("rdzv_backend") != "static"; }

RankLayout layout_of(const Settings& settings) {
  RankLayout layout;
  for (const MeshAxis axis : values<MeshAxis>()) {
    if (axis > MeshAxis::kEp) break;
    size_along(layout, axis) =
        settings.number(absl::StrCat("parallelism_config_", to_string(axis), "_size"));
  }
  layout.fsdp = settings.flag("use_fsdp") && settings.number("fsdp_version") == 2;
  layout.zero = settings.flag("use_deepspeed");
  return layout;
}

absl::Status complete(Settings& settings, const Machine& machine, const Job& job) {
  // Each step relies on those before it: the scheduler tells the machines, machines and devices the
  // ranks, and the ranges hold for all that was filled in.
  ACCELERATE_RETURN_IF_ERROR(check_kinds(settings));
  ACCELERATE_RETURN_IF_ERROR(check_credentials(settings));
  ACCELERATE_RETURN_IF_ERROR(check_simulation(settings));
  if (settings.is_typed("num_processes")) {
    const bool is_one_machine = !settings.is_set("num_machines") && !settings.is_set("nnodes");
    const int64_t max = is_one_machine ? process::kMaxProcesses : setting("num_processes").most;
    ACCELERATE_RETURN_IF_ERROR(check_range(settings, "num_processes", 1, max));
  }
  if (settings.is_set("simulate")) {
    leave_machine_out(settings);
  } else {
    take_job(settings, job);
  }
  ACCELERATE_RETURN_IF_ERROR(take_nodes(settings));
  ACCELERATE_RETURN_IF_ERROR(
      check_range(settings, "num_machines", 1, setting("num_machines").most));
  ACCELERATE_RETURN_IF_ERROR(check_machines(settings));
  ACCELERATE_RETURN_IF_ERROR(take_processes(settings, machine, job));
  ACCELERATE_RETURN_IF_ERROR(check_ranges(settings));
  ACCELERATE_RETURN_IF_ERROR(check_ranks(settings, machine));
  ACCELERATE_RETURN_IF_ERROR(pipeline_text(settings).status());
  ACCELERATE_RETURN_IF_ERROR(check_engines(settings, machine));
  return check_rendezvous(settings);
}

absl::Status check_mesh_size(const Settings& settings, int64_t ranks) {
  if (!settings.flag("use_parallelism_config")) return absl::OkStatus();
  int64_t total = 1;
  std::vector<std::string> given;
  for (const char* name : kMeshSizes) {
    const int64_t size = settings.number(name);
    // Each is at most 2^20, and more ranks there are not.
    total = std::min<int64_t>(total * size, int64_t{1} << 40);
    if (size > 1) given.push_back(settings.describe(name));
  }
  if (total == 1 || total == ranks || (fills_replicas(settings) && ranks % total == 0)) {
    // By the table that the ranks read.
    const auto illegal = find_illegal(layout_of(settings));
    return illegal ? invalid(illegal->text()) : absl::OkStatus();
  }
  std::string advice = "give sizes whose product is the number of ranks";
  if (const int64_t replicas = settings.number(kMeshSizes[0]); ranks % (total / replicas) == 0) {
    advice = absl::StrCat("give --", setting(kMeshSizes[0]).flag_name(), " ",
                          ranks / (total / replicas));
  }
  return invalid(absl::StrJoin(given, ", "), given.size() == 1 ? " is" : " are", " a mesh of ",
                 total, " ranks, and the run has ", ranks, "; ", advice,
                 settings.is_set("simulate") ? std::string(", or another cluster")
                                             : absl::StrCat(", or --num_processes ", total));
}

absl::Status check_status(const Settings& settings) {
  for (const Setting& row : all_settings()) {
    if (row.works() || !settings.is_set(row.name) || settings.is_default(row.name)) continue;
    // What a file says of TPUs, as HF Accelerate's do for every device, counts on TPUs.
    const bool is_idle = row.group == Group::kTpu && !settings.flag("tpu") &&
                         settings.provenance(row.name) == Provenance::kConfigFile;
    if (is_idle) continue;
    return absl::UnimplementedError(
        absl::StrCat(settings.describe(row.name), " is not in this version; leave it out"));
  }
  return absl::OkStatus();
}

std::string note_on_defaults(const Settings& settings) {
  if (settings.has_config()) return "";
  std::vector<std::string> defaults;
  for (const char* name : {"num_processes", "num_machines", "mixed_precision", "dynamo_backend"}) {
    const Provenance provenance = settings.provenance(name);
    if (provenance == Provenance::kDefault || provenance == Provenance::kMachine) {
      defaults.push_back(absl::StrCat(name, "=", settings.text(name)));
    }
  }
  return absl::StrJoin(defaults, ", ");
}

std::string mesh_text(const Settings& settings) {
  const RankLayout layout = layout_of(settings);
  const bool has_mesh = settings.flag("use_parallelism_config") && layout.num_ranks() > 1;
  if (!has_mesh || settings.is_sagemaker()) return "";
  return absl::StrCat("mesh: ", layout.text(),
                      fills_replicas(settings) ? ", in as many replicas as ranks allow" : "", "\n");
}

absl::StatusOr<std::string> pipeline_text(const Settings& settings) {
  const bool has_stages =
      settings.flag("use_parallelism_config") && settings.number("parallelism_config_pp_size") > 1;
  if (!has_stages) return "";
  ACCELERATE_ASSIGN_OR_RETURN(const pipeline::Schedule schedule, schedule_of(settings));
  ACCELERATE_RETURN_IF_ERROR(check_split_points(settings, schedule.stages));
  ACCELERATE_ASSIGN_OR_RETURN(std::vector<int64_t> bytes,
                              stage_bytes_of(settings, schedule.stages));
  ACCELERATE_ASSIGN_OR_RETURN(
      const pipeline::ScheduleTimes times,
      pipeline::schedule_times(
          schedule,
          {.stages = {{.forward_ns = 1, .input_gradient_ns = 1, .weight_gradient_ns = 1}}}));
  return absl::StrCat("pipeline ", settings.text(kSchedule),
                      ", where a backward pass takes the time of two forward passes:\n",
                      pipeline::schedule_text(
                          schedule, times, {.columns = kColumns, .stage_bytes = std::move(bytes)}));
}

std::string note_on_mesh(const Settings& settings) {
  if (settings.flag("use_parallelism_config")) return "";
  std::vector<std::string> idle;
  for (const char* name : kMeshSizes) {
    if (settings.is_typed(name) && settings.number(name) > 1) {
      idle.push_back(settings.describe(name));
    }
  }
  if (idle.empty()) return "";
  return absl::StrCat(absl::StrJoin(idle, ", "), idle.size() == 1 ? " has" : " have",
                      " no effect without --use_parallelism_config");
}

std::string note_on_semantics(const Settings& settings) {
  // A log says for its run whether time-outs are waited for.
  const bool waits = settings.is_set("replay") ||
                     (settings.is_set("timeouts") && settings.text("timeouts") == "wait");
  if (waits || !settings.is_typed("semantics") || settings.text("semantics") == "any") return "";
  return absl::StrCat(settings.describe("semantics"), " has no effect without --timeouts wait");
}

}  // namespace accelerate::launcher::settings
