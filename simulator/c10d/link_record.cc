#include "simulator/c10d/link_record.h"

#include <algorithm>
#include <cstddef>

namespace accelerate::simulator {

std::vector<LinkClass> link_classes(const ClusterSpec& spec) {
  if (!spec.device) return {};
  const int devices = spec.devices_per_node();
  const double node_rate = node_bytes_per_second(spec);
  std::vector<LinkClass> classes = {{LinkKind::kNodeOut, node_rate, devices},
                                    {LinkKind::kNodeIn, node_rate, devices}};
  if (spec.node_fabric == NodeFabric::kPcie) {
    classes.push_back({LinkKind::kBridge, internal::bridge_bytes_per_second(spec), 1});
  }
  if (spec.node_fabric != NodeFabric::kTorus && spec.num_nodes > 1) {
    for (const LinkKind kind : {LinkKind::kNicOut, LinkKind::kNicIn}) {
      classes.push_back({kind, spec.nic.bytes_per_second, spec.nics_per_node});
    }
  }
  for (const LinkKind kind : {LinkKind::kFromHost, LinkKind::kToHost}) {
    classes.push_back({kind, spec.device->host_bytes_per_second, devices});
  }
  return classes;
}

void record_links(Recorder& recorder, int rank, const LinkBytes& bytes, int64_t start_ns,
                  int64_t end_ns) {
  // The kinds of links begin with those of LinkAtRank.
  static_assert(static_cast<size_t>(LinkKind::kNicIn) == kNicIn);
  for (size_t link = 0; link < kNumLinksAtRank; ++link) {
    const double crossed = bytes.*kLinksAtRank[link];
    if (crossed > 0) recorder.link(rank, static_cast<LinkKind>(link), crossed, start_ns, end_ns);
  }
}

void record_traffic(Recorder& recorder, const Operation& operation, const Members& members,
                    const std::vector<int>& ranks, int axis) {
  const CollectiveFingerprint& fingerprint = operation.calls[0].fingerprint;
  const int64_t bytes = operation.bytes;
  const CollectiveKind kind = collective_kind(fingerprint.op);
  const size_t count = ranks.size();
  const auto root = static_cast<size_t>(std::max(fingerprint.root, 0));
  const double part = static_cast<double>(bytes) / static_cast<double>(count);
  for (size_t member = 0; member < count; ++member) {
    size_t source = member;
    size_t target = (member + 1) % count;
    double sent = 0;
    switch (kind) {
      case CollectiveKind::kGather:
        target = root;
        sent = part;
        break;
      case CollectiveKind::kScatter:
        source = root;
        target = member;
        sent = part;
        break;
      case CollectiveKind::kBroadcast:
        sent = target != root ? static_cast<double>(bytes) : 0;
        break;
      case CollectiveKind::kReduce: sent = source != root ? static_cast<double>(bytes) : 0; break;
      case CollectiveKind::kAllToAll:
        sent = static_cast<double>(operation.sent[members.call_of[member]]);
        break;
      case CollectiveKind::kAllReduce: sent = 2 * part * static_cast<double>(count - 1); break;
      default: sent = part * static_cast<double>(count - 1);
    }
    if (source != target && sent > 0) recorder.traffic(ranks[source], ranks[target], sent, axis);
  }
}

const std::vector<LinkBytes>& GroupLinks::use(const ClusterSpec& spec, CollectiveKind kind,
                                              CollectiveAlgorithm algorithm,
                                              const std::vector<int>& ranks, int root) {
  // Only these end or begin at the root's links more than elsewhere.
  const bool is_rooted = kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
  if (!is_rooted || root < 0) root = 0;
  auto [found, is_new] = uses_.try_emplace({kind, algorithm, root});
  if (is_new) found->second = link_use(spec, kind, algorithm, ranks, root);
  return found->second;
}

}  // namespace accelerate::simulator
