#include <algorithm>
#include <utility>
#include <vector>

#include "simulator/network/network.h"

namespace accelerate::simulator::internal {
namespace {

// The nodes of a group: how many, and which kinds there are.
struct Nodes {
  int count = 0;
  std::vector<nccl::Node> kinds;
};

Nodes nodes_of(const ClusterSpec& spec, absl::Span<const int> ranks) {
  Nodes nodes;
  for (size_t begin = 0; begin < ranks.size();) {
    const int number = ranks[begin] / spec.ranks_per_node;
    nccl::Node node;
    int next_nic = 0;  // Those below are counted.
    for (; begin < ranks.size() && ranks[begin] / spec.ranks_per_node == number; ++begin) {
      ++node.gpus;
      const auto [first, last] = nics_of_local_rank(spec, ranks[begin] % spec.ranks_per_node);
      node.nics += std::max(0, last - std::max(first, next_nic));
      next_nic = last;
    }
    ++nodes.count;
    if (std::find(nodes.kinds.begin(), nodes.kinds.end(), node) == nodes.kinds.end()) {
      nodes.kinds.push_back(node);
    }
  }
  return nodes;
}

}  // namespace

std::optional<nccl::Collective> nccl_collective(CollectiveKind kind) {
  switch (kind) {
    // LibTorch's barrier is an all-reduce of one element.
    case CollectiveKind::kBarrier:
    case CollectiveKind::kAllReduce: return nccl::Collective::kAllReduce;
    case CollectiveKind::kReduce: return nccl::Collective::kReduce;
    case CollectiveKind::kBroadcast: return nccl::Collective::kBroadcast;
    case CollectiveKind::kAllGather: return nccl::Collective::kAllGather;
    case CollectiveKind::kReduceScatter: return nccl::Collective::kReduceScatter;
    default: return std::nullopt;
  }
}

nccl::Machine nccl_machine(const ClusterSpec& spec) {
  return nccl::machine_of(spec, latency_between_nodes_ns(spec));
}

ClusterSpec with_links_of(const nccl::Machine& machine, ClusterSpec spec) {
  spec.node_link.bytes_per_second = machine.nvlink * 1e9;
  spec.nic.bytes_per_second = machine.nic * 1e9;
  return spec;
}

CollectiveCosts nccl_costs(const ClusterSpec& spec, absl::Span<const int> ranks) {
  const nccl::Machine machine = nccl_machine(spec);
  const Nodes nodes = nodes_of(spec, ranks);
  const nccl::Shape shape = {
      .ranks = static_cast<int>(ranks.size()), .nodes = nodes.count, .kinds = nodes.kinds};
  CollectiveCosts costs = {.nccl = nccl::Tuning(machine, shape)};
  ClosedForms forms = closed_forms(with_links_of(machine, spec), nullptr, ranks);
  for (const CollectiveKind kind :
       {CollectiveKind::kAllToAll, CollectiveKind::kGather, CollectiveKind::kScatter}) {
    auto& direct = costs.forms[static_cast<size_t>(kind)];
    direct = std::move(forms[static_cast<size_t>(kind)]);
    for (ClosedForm& form : direct) {
      form.cost.latency_ns = 1000 * nccl::message_latency_us(machine, nodes.count == 1);
    }
  }
  return costs;
}

}  // namespace accelerate::simulator::internal
