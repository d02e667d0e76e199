#include "accelerate/runtime/topology.h"

#include <cstdint>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/runtime/env.h"

namespace accelerate {
namespace {

// Far above any machine, far below overflow of a product of two.
constexpr int kMaxWorldSize = 1 << 24;

absl::StatusOr<std::optional<int>> read_count(const Environment& environment, const char* name) {
  std::optional<std::string> text = environment.get(name);
  if (!text || text->empty()) return std::nullopt;
  int value = 0;
  if (!absl::SimpleAtoi(*text, &value) || value < 0 || value > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=\"", *text, "\" is not a number from 0 to ", kMaxWorldSize));
  }
  return value;
}

absl::Status check_index(const char* index_name, int index, const char* count_name, int count) {
  if (count < 1)
    return absl::InvalidArgumentError(absl::StrCat(count_name, "=0: must be positive"));
  if (index < count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(index_name, "=", index, " is not below ", count_name, "=", count));
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
          .num_nodes = num_nodes};
}

absl::StatusOr<Topology> topology_from_environment(const Environment& environment) {
  std::optional<int> values[5];
  const char* names[5] = {env::kRank, env::kWorldSize, env::kLocalRank, env::kLocalWorldSize,
                          env::kGroupRank};
  for (int i = 0; i < 5; ++i) {
    absl::StatusOr<std::optional<int>> value = read_count(environment, names[i]);
    if (!value.ok()) return value.status();
    values[i] = *value;
  }
  const auto& [rank, world_size, local_rank, local_world_size, node_rank] = values;
  if (rank.has_value() != world_size.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(rank ? env::kRank : env::kWorldSize, " is set but ",
                     rank ? env::kWorldSize : env::kRank, " is not; set both or neither"));
  }
  Topology topology;
  topology.rank = rank.value_or(0);
  topology.world_size = world_size.value_or(1);
  if (absl::Status ok =
          check_index(env::kRank, topology.rank, env::kWorldSize, topology.world_size);
      !ok.ok()) {
    return ok;
  }
  // Without a word on nodes, all ranks share one.
  topology.local_world_size = local_world_size.value_or(topology.world_size);
  if (topology.local_world_size > topology.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(env::kLocalWorldSize, "=",
                                                   topology.local_world_size, " is above ",
                                                   env::kWorldSize, "=", topology.world_size));
  }
  topology.local_rank = local_rank.value_or(
      topology.local_world_size > 0 ? topology.rank % topology.local_world_size : 0);
  if (absl::Status ok = check_index(env::kLocalRank, topology.local_rank, env::kLocalWorldSize,
                                    topology.local_world_size);
      !ok.ok()) {
    return ok;
  }
  topology.num_nodes =
      (topology.world_size + topology.local_world_size - 1) / topology.local_world_size;
  topology.node_rank = node_rank.value_or(topology.rank / topology.local_world_size);
  if (absl::Status ok = check_index(env::kGroupRank, topology.node_rank, "the number of nodes",
                                    topology.num_nodes);
      !ok.ok()) {
    return ok;
  }
  return topology;
}

void export_topology(const Topology& topology, Environment& environment) {
  environment.set(env::kRank, absl::StrCat(topology.rank));
  environment.set(env::kWorldSize, absl::StrCat(topology.world_size));
  environment.set(env::kLocalRank, absl::StrCat(topology.local_rank));
  environment.set(env::kLocalWorldSize, absl::StrCat(topology.local_world_size));
  environment.set(env::kGroupRank, absl::StrCat(topology.node_rank));
}

}  // namespace accelerate
