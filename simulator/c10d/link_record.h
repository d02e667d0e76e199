/// Tells the recorder what crosses the links of a cluster, and what ranks send each other.
///
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "simulator/c10d/collectives.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/link_use.h"
#include "simulator/network/network.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {

/// The links that a cluster has, but for its disks; none without devices.
std::vector<LinkClass> link_classes(const ClusterSpec& spec);

/// Bytes over the links at a rank, from `start_ns` to `end_ns`.
void record_links(Recorder& recorder, int rank, const LinkBytes& bytes, int64_t start_ns,
                  int64_t end_ns);

/// Records the bytes that each member sends: to or from the root what is gathered or scattered, all
/// else to the next member, as on a ring. A broadcast ends, and a reduction begins, where the ring
/// comes round to the root. `axis` is the recorder's number.
void record_traffic(Recorder& recorder, const Operation& operation, const Members& members,
                    const std::vector<int>& ranks, int axis);

/// The links that the collectives of one group use. What each algorithm sends is worked out once.
class GroupLinks {
 public:
  /// By member, for each byte of the result. `root`: a member's number, or -1.
  const std::vector<LinkBytes>& use(const ClusterSpec& spec, CollectiveKind kind,
                                    CollectiveAlgorithm algorithm, const std::vector<int>& ranks,
                                    int root);

 private:
  std::map<std::tuple<CollectiveKind, CollectiveAlgorithm, int>, std::vector<LinkBytes>> uses_;
};

}  // namespace accelerate::simulator
