/// The duration of one collective of all ranks of a cluster as text: `accelerate simulate
/// --explain-collective`.
///
///   all_reduce 25MB              the collective, and the bytes of network.h
///   reduce_scatter 1GiB avg      an average, which switches do not reduce
///
/// For GPUs by NVIDIA it has the table that NCCL_DEBUG_SUBSYS=TUNING prints, at this size.
///
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/network.h"

namespace accelerate::simulator {

struct CollectiveQuestion {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t bytes = 0;
  nccl::Reduction reduction = nccl::Reduction::kInSwitches;
};

/// Errors: InvalidArgument that shows the text and says what it may be.
absl::StatusOr<CollectiveQuestion> parse_collective(absl::string_view text);

/// The times under `ideal`, and by NCCL's model where it applies, whatever the cluster's
/// efficiency; lines. Errors: those of parse_collective; InvalidArgument if the cluster has less
/// than two ranks or no device.
absl::StatusOr<std::string> explain_collective(absl::string_view text, const ClusterSpec& spec);

}  // namespace accelerate::simulator
