#include <algorithm>
#include <utility>
#include <vector>

#include "simulator/network/closed_forms.h"

namespace accelerate::simulator::internal {

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
  const std::vector<NodePart> parts = parts_of(spec, ranks);
  std::vector<nccl::Node> kinds;
  for (const NodePart& part : parts) {
    const nccl::Node node = {part.members, static_cast<int>(part.nics.size())};
    if (std::ranges::find(kinds, node) == kinds.end()) kinds.push_back(node);
  }
  const nccl::Shape shape = {.ranks = static_cast<int>(ranks.size()),
                             .nodes = static_cast<int>(parts.size()),
                             .kinds = kinds};
  CollectiveCosts costs = {.nccl = nccl::Tuning(machine, shape)};
  ClosedForms forms = closed_forms(with_links_of(machine, spec), nullptr, ranks);
  for (const CollectiveKind kind :
       {CollectiveKind::kAllToAll, CollectiveKind::kGather, CollectiveKind::kScatter}) {
    auto& direct = costs.forms[static_cast<size_t>(kind)];
    direct = std::move(forms[static_cast<size_t>(kind)]);
    for (ClosedForm& form : direct) {
      form.cost.latency_ns = 1000 * nccl::message_latency_us(machine, parts.size() == 1);
    }
  }
  return costs;
}

}  // namespace accelerate::simulator::internal
