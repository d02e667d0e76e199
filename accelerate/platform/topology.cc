#include "accelerate/platform/topology.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/host_address.h"
#include "accelerate/platform/slurm.h"

namespace accelerate {
namespace {

// Far above any machine, far below overflow of a product of two.
constexpr int kMaxWorldSize = 1 << 24;
constexpr int kDefaultPort = 29500;
constexpr char kLoopback[] = "127.0.0.1";

// Reports variables that contradict each other or lack; the public functions make a status of it.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw std::invalid_argument(absl::StrCat(parts...));
}

// The variables of one launcher; null where it has none for a quantity.
struct Names {
  const char* source;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* node_rank;
};

// In order of precedence. Slurm comes after them.
constexpr Names kLaunchers[] = {
    {"torchrun", env::kRank, env::kWorldSize, env::kLocalRank, env::kLocalWorldSize,
     env::kGroupRank},
    {"MPICH/PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr},
    {"MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE", nullptr},
    {"PMIx", "PMIX_RANK", nullptr, nullptr, nullptr, nullptr},
};

// A number, and the name to call it by in errors.
struct Fact {
  std::string name;
  int value = 0;

  std::string text() const { return absl::StrCat(name, "=", value); }
};
using MaybeFact = std::optional<Fact>;

struct Source {
  std::string name;
  MaybeFact rank;
  MaybeFact world_size;
  MaybeFact local_rank;
  MaybeFact local_world_size;
  MaybeFact node_rank;
  MaybeFact num_nodes;

  bool complete() const { return rank && world_size; }
  std::string text() const { return absl::StrCat(rank->text(), " ", world_size->text()); }
};

using MaybeFactOf = MaybeFact Source::*;

MaybeFact read_count(const Environment& environment, const char* name) {
  const std::string text = name == nullptr ? "" : environment.get_or(name, "");
  if (text.empty()) return std::nullopt;
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value > kMaxWorldSize) {
    refuse(name, "=\"", text, "\" is not a number from 0 to ", kMaxWorldSize);
  }
  if (value < 0) return std::nullopt;
  return Fact{name, value};
}

// Reads what is not there yet.
void read_counts(const Environment& environment,
                 std::initializer_list<std::pair<const char*, MaybeFact*>> readings) {
  for (const auto& [name, fact] : readings) {
    if (!*fact) *fact = read_count(environment, name);
  }
}

// The tasks on this task's node. Slurm's lists of them may be those of the whole allocation rather
// than of this step; then they do not add up.
MaybeFact slurm_local_world_size(const Environment& environment, const Source& slurm) {
  if (!slurm.world_size || !slurm.node_rank) return std::nullopt;
  const int world_size = slurm.world_size->value;
  const int64_t node = slurm.node_rank->value;
  for (const char* name :
       {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"}) {
    const std::string text = environment.get_or(name, "");
    if (text.empty()) continue;
    absl::StatusOr<std::vector<int>> counts = expand_slurm_counts(text);
    if (!counts.ok()) refuse(name, ": ", counts.status().message());
    int64_t sum = 0;
    for (int count : *counts) sum += count;
    if (sum == world_size && node < static_cast<int64_t>(counts->size())) {
      return Fact{name, (*counts)[static_cast<size_t>(node)]};
    }
    // One number holds for every node but the last, which has what is left.
    const int64_t left = world_size - node * counts->front();
    if (counts->size() == 1 && counts->front() > 0 && left > 0) {
      return Fact{name, static_cast<int>(std::min<int64_t>(counts->front(), left))};
    }
  }
  if (slurm.num_nodes && slurm.num_nodes->value > 0 && world_size % slurm.num_nodes->value == 0) {
    return Fact{absl::StrCat(slurm.world_size->name, "/", slurm.num_nodes->name),
                world_size / slurm.num_nodes->value};
  }
  return std::nullopt;
}

Source read_slurm(const Environment& environment) {
  Source slurm{.name = "SLURM"};
  if (slurm_role(environment) != SlurmRole::kTask) return slurm;
  read_counts(environment, {{"SLURM_PROCID", &slurm.rank},
                            {"SLURM_STEP_NUM_TASKS", &slurm.world_size},
                            {"SLURM_NTASKS", &slurm.world_size},
                            {"SLURM_LOCALID", &slurm.local_rank},
                            {"SLURM_NODEID", &slurm.node_rank},
                            {"SLURM_STEP_NUM_NODES", &slurm.num_nodes},
                            {"SLURM_NNODES", &slurm.num_nodes},
                            {"SLURM_JOB_NUM_NODES", &slurm.num_nodes}});
  slurm.local_world_size = slurm_local_world_size(environment, slurm);
  return slurm;
}

std::vector<Source> read_sources(const Environment& environment) {
  std::vector<Source> sources;
  for (const Names& names : kLaunchers) {
    Source& source = sources.emplace_back(Source{.name = names.source});
    read_counts(environment, {{names.rank, &source.rank},
                              {names.world_size, &source.world_size},
                              {names.local_rank, &source.local_rank},
                              {names.local_world_size, &source.local_world_size},
                              {names.node_rank, &source.node_rank}});
    // Intel MPI speaks PMI as well, and its mpirun leaves variables that MPICH's does not.
    if (source.name == "MPICH/PMI" && (environment.get("I_MPI_MPIRUN").has_value() ||
                                       environment.get("I_MPI_ROOT").has_value())) {
      source.name = "Intel MPI";
    }
  }
  sources.push_back(read_slurm(environment));
  return sources;
}

bool same_place(const Source& a, const Source& b) {
  return a.rank->value == b.rank->value && a.world_size->value == b.world_size->value;
}

// Whether torchrun's variables come from launchers that `outer` started and counts: there are more
// ranks than that, and this one knows which of its node's it is. And WORLD_SIZE=1
// asks for a rank that is alone.
bool starts_launchers(const Source& torchrun, const Source& outer) {
  const int world_size = torchrun.world_size->value;
  return world_size == 1 || outer.world_size->value == 1 ||
         (torchrun.local_rank && world_size > outer.world_size->value);
}

// Leaves out the sources that do not speak of this job's ranks.
std::vector<Source> leave_out_outer(std::vector<Source> sources) {
  std::vector<Source> kept;
  const Source* first = nullptr;
  kept.reserve(sources.size());  // `first` points into it.
  for (Source& source : sources) {
    // With GROUP_RANK the contract is whole: a launcher of ranks wrote it.
    if (first != nullptr && first->name == "torchrun" && first->node_rank) break;
    if (source.complete() && first != nullptr && !same_place(*first, source)) {
      if (first->name == "torchrun" && starts_launchers(*first, source)) continue;
      // mpirun's daemons are tasks of Slurm's, and their ranks inherit the variables.
      if (first->name != "torchrun" && source.name == "SLURM") continue;
      refuse(first->text(), " (", first->name, ") and ", source.text(), " (", source.name,
             ") contradict each other; unset those that do not belong to this job");
    }
    kept.push_back(std::move(source));
    if (first == nullptr && kept.back().complete()) first = &kept.back();
  }
  return kept;
}

const Source* first_with(const std::vector<Source>& sources, MaybeFactOf quantity) {
  for (const Source& source : sources) {
    if ((source.*quantity).has_value()) return &source;
  }
  return nullptr;
}

Fact first_fact(const std::vector<Source>& sources, MaybeFactOf quantity, const Fact& otherwise) {
  const Source* source = first_with(sources, quantity);
  return source == nullptr ? otherwise : *(source->*quantity);
}

void check_index(const Fact& index, const Fact& count) {
  if (count.value < 1) refuse(count.text(), ": must be positive");
  if (index.value >= count.value) refuse(index.text(), " is not below ", count.text());
}

[[noreturn]] void refuse_half(const Environment& environment, const std::string& set,
                              const char* unset) {
  const std::string text = environment.get_or(unset, "");
  refuse(set, " is set but ", unset, " is not",
         text.empty() ? "" : absl::StrCat(" (", unset, "=\"", text, "\" counts as unset)"),
         "; set both or neither");
}

// Rank and number of ranks may come from two sources, but then must fit together.
void check_pair(const Environment& environment, const Source* with_rank,
                const Source* with_world_size) {
  if (with_rank == nullptr && with_world_size == nullptr) return;
  if (with_world_size == nullptr) refuse_half(environment, with_rank->rank->name, env::kWorldSize);
  if (with_rank == nullptr) refuse_half(environment, with_world_size->world_size->name, env::kRank);
  const Fact& rank = *with_rank->rank;
  const Fact& world_size = *with_world_size->world_size;
  check_index(rank, world_size);
  if (with_rank->world_size && with_rank->world_size->value != world_size.value) {
    refuse(rank.text(), " counts up to ", with_rank->world_size->text(), ", but ",
           world_size.text(), "; unset one of them");
  }
  if (with_world_size->rank && with_world_size->rank->value != rank.value) {
    refuse(world_size.text(), " goes with ", with_world_size->rank->text(), ", but ", rank.text(),
           "; unset one of them");
  }
}

// Ranks fill nodes one after the other or, where the rank within the node says so, in turns.
int guess_node_rank(const Topology& topology) {
  const int in_blocks = topology.rank / topology.local_world_size;
  const bool fits_blocks = topology.rank % topology.local_world_size == topology.local_rank;
  const bool fits_turns = topology.rank / topology.num_nodes == topology.local_rank;
  return !fits_blocks && fits_turns ? topology.rank % topology.num_nodes : in_blocks;
}

struct Resolved {
  Topology topology;
  // Whether the number of ranks on this node was given rather than assumed.
  bool knows_node = false;
  // Whether Slurm counts these very ranks.
  bool slurm_tasks = false;
};

Resolved resolve(const Environment& environment) {
  const std::vector<Source> sources = leave_out_outer(read_sources(environment));
  const Source* with_world_size = first_with(sources, &Source::world_size);
  check_pair(environment, first_with(sources, &Source::rank), with_world_size);
  const Fact rank = first_fact(sources, &Source::rank, {env::kRank, 0});
  const Fact world_size = first_fact(sources, &Source::world_size, {env::kWorldSize, 1});
  // Without any variable about nodes, all ranks share one.
  const Fact local_world_size =
      first_fact(sources, &Source::local_world_size, {env::kLocalWorldSize, world_size.value});
  if (local_world_size.value > world_size.value) {
    refuse(local_world_size.text(), " is above ", world_size.text());
  }
  const int per_node = std::max(local_world_size.value, 1);
  const Fact local_rank =
      first_fact(sources, &Source::local_rank, {env::kLocalRank, rank.value % per_node});
  check_index(local_rank, local_world_size);

  Resolved resolved;
  Topology& topology = resolved.topology;
  topology.rank = rank.value;
  topology.world_size = world_size.value;
  topology.local_rank = local_rank.value;
  topology.local_world_size = local_world_size.value;
  topology.num_nodes = std::max(
      1, first_fact(sources, &Source::num_nodes, {"", (world_size.value + per_node - 1) / per_node})
             .value);
  const Fact node_rank =
      first_fact(sources, &Source::node_rank, {env::kGroupRank, guess_node_rank(topology)});
  topology.node_rank = node_rank.value;
  // If nodes differ in size, this node's size does not give their number.
  if (world_size.value % per_node != 0) {
    topology.num_nodes = std::max(topology.num_nodes, node_rank.value + 1);
  }
  check_index(node_rank, {"the number of nodes", topology.num_nodes});
  if (with_world_size != nullptr) topology.source = with_world_size->name;
  resolved.knows_node = first_with(sources, &Source::local_world_size) != nullptr;
  resolved.slurm_tasks = sources.back().name == "SLURM" && sources.back().complete();
  return resolved;
}

std::string find_address(const Environment& environment, const Resolved& resolved) {
  const Topology& topology = resolved.topology;
  if (std::string address = environment.get_or(env::kMasterAddr, ""); !address.empty()) {
    if (const absl::Status checked = check_host(address); !checked.ok()) {
      refuse(env::kMasterAddr, ": ", checked.message(),
             "; it has neither brackets nor a port, which ", env::kMasterPort, " has");
    }
    return address;
  }
  if (resolved.knows_node && topology.local_world_size == topology.world_size) return kLoopback;
  if (resolved.slurm_tasks) {
    if (auto host = value_or_throw<std::invalid_argument>(slurm_first_host(environment))) {
      return *std::move(host);
    }
  }
  refuse(topology.world_size, " ranks (", topology.source, ") ",
         resolved.knows_node ? absl::StrCat("of which ", topology.local_world_size, " on this node")
                             : absl::StrCat("and nothing about nodes (", env::kLocalWorldSize, ")"),
         ", but ", env::kMasterAddr, " is not set; set ", env::kMasterAddr,
         " to the host of rank 0, or start the program with `accelerate launch`");
}

uint16_t find_port(const Environment& environment, const Resolved& resolved) {
  const std::string text = environment.get_or(env::kMasterPort, "");
  int port = kDefaultPort;
  if (!text.empty()) {
    if (!absl::SimpleAtoi(text, &port) || port < 1 || port > 65535) {
      refuse(env::kMasterPort, "=\"", text, "\" is not a port from 1 to 65535");
    }
  } else if (resolved.slurm_tasks) {
    port = slurm_port(environment).value_or(kDefaultPort);
  }
  return static_cast<uint16_t>(port);
}

// A job's script that runs the program itself, not through srun, would train on one core of all.
std::string find_notice(const Environment& environment, const Topology& topology) {
  const std::string tasks = environment.get_or("SLURM_NTASKS", "1");
  if (topology.source != "plain" || tasks == "1" || slurm_role(environment) != SlurmRole::kShell) {
    return "";
  }
  return absl::StrCat("this is the shell of a Slurm job for SLURM_NTASKS=", tasks,
                      " tasks, not one of its tasks: running one rank; start the program with "
                      "`srun` for one rank a task");
}

}  // namespace

std::string Topology::shape() const {
  if (num_nodes * local_world_size == world_size) {
    return absl::StrCat(num_nodes, "x", local_world_size);
  }
  return absl::StrCat(world_size);
}

Topology Topology::uniform(int rank, int num_nodes, int ranks_per_node) {
  return {.rank = rank,
          .world_size = num_nodes * ranks_per_node,
          .local_rank = rank % ranks_per_node,
          .local_world_size = ranks_per_node,
          .node_rank = rank / ranks_per_node,
          .num_nodes = num_nodes,
          .source = kLaunchers[0].source};
}

absl::StatusOr<Topology> topology_from_environment(const Environment& environment) {
  return as_status(absl::StatusCode::kInvalidArgument,
                   [&]() -> absl::StatusOr<Topology> { return resolve(environment).topology; });
}

absl::StatusOr<Placement> placement_from_environment(const Environment& environment) {
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<Placement> {
    const Resolved resolved = resolve(environment);
    Placement placement{.topology = resolved.topology};
    if (placement.topology.world_size > 1) {
      placement.master_addr = find_address(environment, resolved);
      placement.master_port = find_port(environment, resolved);
    }
    placement.notice = find_notice(environment, placement.topology);
    return placement;
  });
}

void export_topology(const Topology& topology, Environment& environment) {
  environment.set(env::kRank, absl::StrCat(topology.rank));
  environment.set(env::kWorldSize, absl::StrCat(topology.world_size));
  environment.set(env::kLocalRank, absl::StrCat(topology.local_rank));
  environment.set(env::kLocalWorldSize, absl::StrCat(topology.local_world_size));
  environment.set(env::kGroupRank, absl::StrCat(topology.node_rank));
}

void export_placement(const Placement& placement, Environment& environment) {
  export_topology(placement.topology, environment);
  if (placement.master_addr.empty()) return;
  environment.set(env::kMasterAddr, placement.master_addr);
  environment.set(env::kMasterPort, absl::StrCat(placement.master_port));
}

}  // namespace accelerate
