/// Options that reach through the Accelerator to the parts it builds.
///
/// Mirrors: the peer's KwargsHandler classes, fields and defaults. An Accelerator takes at most one
/// of each.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace accelerate {

/// How DistributedDataParallel works.
struct DistributedDataParallelKwargs {
  /// Rank 0's buffers are copied to all ranks before each synchronising forward pass.
  bool broadcast_buffers = true;
  /// Size of a gradient bucket, in MiB. The first one is at most 1 MiB, so that it starts early.
  double bucket_cap_mb = 25;
  /// Look for parameters that a forward pass did not use, and count their gradient as zero.
  bool find_unused_parameters = false;
  /// Gradients are views into the buckets, which saves a copy and their memory.
  bool gradient_as_bucket_view = false;

  bool operator==(const DistributedDataParallelKwargs&) const = default;
};

/// How the job's process group is made. The first Accelerator on a Runtime decides.
struct InitProcessGroupKwargs {
  /// Name of a backend; empty lets the Runtime choose.
  std::string backend;
  /// How long an operation waits for its peers.
  absl::Duration timeout = absl::Minutes(30);

  bool operator==(const InitProcessGroupKwargs&) const = default;
};

using KwargsHandler = std::variant<DistributedDataParallelKwargs, InitProcessGroupKwargs>;

/// The handlers by class, defaults where none was given.
struct KwargsHandlers {
  DistributedDataParallelKwargs ddp;
  std::optional<InitProcessGroupKwargs> init;

  /// Errors: c10::ValueError naming the class that was given twice.
  static KwargsHandlers from_list(const std::vector<KwargsHandler>& list);
};

}  // namespace accelerate
