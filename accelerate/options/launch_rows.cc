#include <cstdint>

#include "accelerate/options/rows.h"

namespace accelerate::options {
namespace {

using enum Group;
using enum Spelling;
using enum ValueType;

constexpr Option kLaunchRows[] = {
    common(kProgram, "config_file", kText, "YAML or JSON file to take settings from")
        .called("FILE"),
    ours(kProgram, "no_default_config", kFlag,
         "take no settings from the default configuration file"),
    common(kProgram, "module", kFlag, "PROGRAM is a shared object to load").shortened('m'),
    peer(kProgram, "no_python", kFlag, "has no effect: programs are always started as they are"),
    peer(kProgram, "main_training_function", kText,
         "symbol to call in the shared object of --module",
         {"Function that is called on each core", "main"})
        .at_top(),
    common(kRanks, "cpu", kFlag, "run on the CPU even where there are devices",
           {"Train on the CPU even where there is a device?"})
        .in_both("use_cpu")
        .exchanged_by("ACCELERATE_USE_CPU")
        .written_as(kCapital),
    common(kRanks, "multi_gpu", kFlag, "one rank per device; at least two ranks"),
    common(kRanks, "mixed_precision", kText, "data type of the computation", {"?"})
        .or_else("no")
        .in_any_case("no|fp16|bf16|fp8")
        .in_both()
        .exchanged_by("ACCELERATE_MIXED_PRECISION")
        .for_ranks(),
    common(kRanks, "num_processes", kInt,
           "ranks over all machines; default: one per device, else 1")
        .at_top()
        .written_to("WORLD_SIZE")
        .between(1),
    ours(kRanks, "nproc_per_node", kInt, "ranks of each machine, in place of --num_processes"),
    common(kRanks, "gradient_accumulation_steps", kInt, "micro-batches of a step", {"?", "1"})
        .in(Section::kDeepSpeed)
        .exchanged_by("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
        .between(1, INT32_MAX)
        .for_ranks()
        .field_or("auto"),
    common(kRanks, "num_cpu_threads_per_process", kInt,
           "threads of a rank; default: see launching.md")
        .written_to("OMP_NUM_THREADS")
        .between(1)
        .for_ranks(),
    peer(kRanks, "enable_cpu_affinity", kFlag, "bind each rank to the cores near its device",
         {"?", "no"})
        .in_both()
        .exchanged_by("ACCELERATE_CPU_AFFINITY"),
    peer(kRanks, "use_deepspeed", kFlag,
         "shard optimizer, gradients and parameters in stages (ZeRO)", {"Use DeepSpeed's ZeRO?"})
        .exchanged_by("ACCELERATE_USE_DEEPSPEED")
        .for_ranks(),
    peer(kRanks, "use_fsdp", kFlag, "shard parameters (FSDP)",
         {"Use Fully Sharded Data Parallel (FSDP)?"})
        .exchanged_by("ACCELERATE_USE_FSDP")
        .for_ranks(),
    peer(kRanks, "use_parallelism_config", kFlag, "arrange the ranks in a mesh; see parallelism.md",
         {"Arrange the ranks in a mesh (parallelism config)?"})
        .exchanged_by("ACCELERATE_USE_PARALLELISM_CONFIG")
        .for_ranks(),
    peer(kRanks, "use_megatron_lm", kFlag,
         "tensor, pipeline and sequence parallelism in the manner of Megatron-LM",
         {"Use Megatron-LM's parallelism?"})
        .exchanged_by("ACCELERATE_USE_MEGATRON_LM")
        .for_ranks(),
    common(kRanks, "gpu_ids", kText, "devices of this machine, as in 0,2, or all").in_both(),
    file_only(kRanks, "compute_environment", kText, "where the run is")
        .or_else("LOCAL_MACHINE")
        .one_of("LOCAL_MACHINE|AMAZON_SAGEMAKER")
        .in_both(),
    file_only(kRanks, "distributed_type", kText, "kind of the run").in_both(),
    common(kMachines, "num_machines", kInt, "machines of the run", {"How many machines?", "1"})
        .in_both()
        .written_to("GROUP_WORLD_SIZE")
        .between(1),
    ours(kMachines, "standalone", kFlag, "this machine alone, at any free port"),
    peer(kMachines, "same_network", kFlag,
         "the rendezvous is at main_process_ip:main_process_port, as without it; excludes "
         "--rdzv_endpoint",
         {"Are all machines in the same local network?", "yes"})
        .at_top(),
    common(kMachines, "machine_rank", kInt, "number of this machine, from 0",
           {"Rank of this machine", "0"})
        .at_top()
        .written_to("GROUP_RANK")
        .or_spelt("node_rank")
        .between(0),
    common(kMachines, "main_process_ip", kText, "name or address of machine 0",
           {"Name or address of the machine with rank 0"})
        .at_top()
        .written_to("MASTER_ADDR")
        .or_spelt("master_addr"),
    common(kMachines, "main_process_port", kInt,
           "port of machine 0; 0: any free one; default: 29500, on one machine any free one",
           {"Port of the machine with rank 0", "29500"})
        .at_top()
        .written_to("MASTER_PORT")
        .or_spelt("master_port")
        .between(0, UINT16_MAX),
    common(kMachines, "rdzv_backend", kText,
           "rendezvous of machines: static, or c10d where they may come and go",
           {"Which rendezvous do the machines use?", nullptr, nullptr, "static|c10d"})
        .or_else("static")
        .at_top(),
    peer(kMachines, "rdzv_conf", kText, "key=value,... of the rendezvous"),
    peer(kMachines, "mpirun_hostfile", kText, "start with mpirun on the machines in this file",
         {"File of the machines", "~/hostfile", nullptr, nullptr, "Start the ranks with mpirun?",
          true})
        .called("FILE")
        .in(Section::kMpirun),
    ours(kMachines, "nnodes", kText,
         "machines that may take part; a range with --rdzv_backend c10d")
        .called("MIN:MAX")
        .common(),
    ours(kMachines, "rdzv_endpoint", kText,
         "place of the rendezvous, an IPv6 address in brackets; default: main_process_ip and "
         "main_process_port")
        .called("HOST:PORT")
        .common(),
    ours(kMachines, "rdzv_id", kText, "name of the run; a rendezvous takes machines of one run")
        .or_else("none"),
    ours(kMachines, "local_addr", kText, "address of this machine as the others reach it"),
    ours(kMachines, "slurm", kFlag,
         "start with srun; found by itself inside an allocation of several machines")
        .negated_by("no_slurm"),
    common(kLogs, "quiet", kFlag, "when the run fails, only pass on the exit code").shortened('q'),
    common(
        kLogs, "tee", kText,
        "streams that go to the console as well as to files: 0 none, 1 out, 2 err, 3 both, or by "
        "rank as in 0:3,1:1")
        .shortened('t')
        .or_else("0"),
    common(kLogs, "log_dir", kText, "folder for the output of each rank").called("DIR"),
    peer(kLogs, "role", kText,
         "value of ROLE_NAME in the environment of the ranks, for programs that read it")
        .or_else("default"),
    common(kLogs, "max_restarts", kInt, "how often to start the ranks anew after a failure")
        .or_else("0")
        .between(0, INT32_MAX),
    peer(kLogs, "monitor_interval", kFloat,
         "seconds within which machines that join an elastic run are added together; failures are "
         "noticed at once")
        .or_else("0.1"),
    common(kLogs, "debug", kFlag, "compare collectives between ranks before they run",
           {"Compare collectives between ranks before they run? It costs time", "no"})
        .in_both()
        .exchanged_by("ACCELERATE_DEBUG_MODE"),
    ours(kLogs, "redirects", kText, "streams that go to files only; as --tee").or_else("0"),
    ours(kLogs, "local_ranks_filter", kText,
         "the only ranks of this machine whose output is shown, as in 0,1"),
    ours(kLogs, "kill_grace", kInt, "seconds from asking ranks to stop to killing them")
        .between(0, 86400),
    ours(kLogs, "no_preflight", kFlag, "skip the checks before the start"),
    ours(kSimulation, "simulate", kText,
         "run on a simulated cluster inside one process, for example 2x4 or 2x4:h100",
         {"Which cluster: nodes x devices, and their kind after a colon", "2x4"})
        .called("SPEC")
        .at_top()
        .written_to("ACCELERATE_SIMULATE")
        .common(),
    ours(kSimulation, "simulate_seed", kText, "scheduler seed of the simulated run")
        .written_to("ACCELERATE_SIMULATE_SEED"),
    ours(kSimulation, "seeds", kText,
         "repeat the simulated run with each seed, as 0:50 with 0 to 49, and tell which failed; "
         "with --report each has a folder of its own in DIR")
        .called("FIRST:END"),
    ours(kSimulation, "sweep", kText,
         "run the program on each of these simulated clusters, between semicolons as in "
         "\"2x8:h100;4x8:h100\", and print a table of step times, MFU and memory")
        .called("CLUSTERS"),
    ours(kSimulation, "fit", kText,
         "find the smallest part of this simulated cluster on which the program fits, as in "
         "128x8:h100")
        .called("CLUSTER"),
    ours(kSimulation, "tokens_per_sample", kInt,
         "length of a sequence, for the tokens per second in the table of --sweep and --fit"),
    ours(kSimulation, "csv", kText, "where --sweep and --fit write their table as CSV")
        .called("FILE"),
    ours(kSimulation, "no_detect", kText,
         "detectors to turn off in the simulated run: races, leaks, drift, between commas")
        .written_to("ACCELERATE_SIMULATE_NO_DETECT"),
    ours(kSimulation, "faults", kText,
         "what goes wrong in the simulated run: rules between semicolons, as in "
         "\"rank 3 at step 12: crash\", or @FILE with rules")
        .called("RULES")
        .written_to("ACCELERATE_SIMULATE_FAULTS"),
    ours(
        kSimulation, "timeouts", kText,
        "whether ranks of the simulated run that wait in vain are reported at once, or after their "
        "time-outs as on a cluster")
        .one_of("diagnose|wait")
        .written_to("ACCELERATE_SIMULATE_TIMEOUTS"),
    ours(kSimulation, "semantics", kText,
         "the library behind process groups that the simulated run is like, where --timeouts wait: "
         "who notices that a rank has ended")
        .one_of("any|gloo|nccl|mpi")
        .written_to("ACCELERATE_SIMULATE_SEMANTICS"),
    ours(kSimulation, "log", kText,
         "where the simulated run writes what it drew and what its ranks came to; with --seeds "
         "each writes FILE.seed_SEED")
        .called("FILE")
        .written_to("ACCELERATE_SIMULATE_LOG"),
    ours(kSimulation, "replay", kText,
         "a log of the same program that the simulated run follows, up to the first difference; "
         "seed and faults are those of the log")
        .called("FILE")
        .written_to("ACCELERATE_SIMULATE_REPLAY"),
    ours(kSimulation, "twice", kFlag,
         "run the simulation twice with one seed, and name the first difference")
        .written_to("ACCELERATE_SIMULATE_TWICE"),
    ours(kSimulation, "simulate_numerics", kText,
         "what the simulated run computes: shapes gives times and memory without the values of "
         "large tensors, for models that do not fit on this machine")
        .one_of("real|shapes")
        .or_spelt("numerics")
        .written_to("ACCELERATE_SIMULATE_NUMERICS"),
    ours(kSimulation, "simulate_unknown_values", kText,
         "what a program gets that reads a value which --simulate_numerics shapes does not compute")
        .one_of("error|nan")
        .written_to("ACCELERATE_SIMULATE_UNKNOWN_VALUES"),
    ours(kSimulation, "simulate_fold", kFlag,
         "execute one of the ranks that do the same, and count it for the others; needs "
         "--simulate_numerics shapes")
        .or_spelt("fold")
        .written_to("ACCELERATE_SIMULATE_FOLD"),
    ours(kSimulation, "report", kText,
         "where the simulated run writes report.html, trace.json and summary.json")
        .called("DIR")
        .written_to("ACCELERATE_SIMULATE_REPORT")
        .common(),
    ours(kLook, "print_config", kFlag,
         "show the settings that are not the defaults, and where they came from; start nothing; "
         "--print_config=all: every setting")
        .common(),
    ours(kLook, "dry_run", kFlag, "show what would be started; start nothing").common(),
};

}  // namespace

absl::Span<const Option> launch_rows() { return kLaunchRows; }

}  // namespace accelerate::options
