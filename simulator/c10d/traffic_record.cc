#include "simulator/c10d/traffic_record.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace accelerate::simulator {

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

}  // namespace accelerate::simulator
