/// How a model's parameters are divided among ranks, gathered, and reduced.
///
/// Threads: values.
/// Mirrors: the arguments of torch.distributed.fsdp.fully_shard and FullyShardedDataParallel, as
/// far
///          as they do not concern the module itself.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "accelerate/swap/swapped_tensors.h"

namespace accelerate {

class PackedParameters;

/// When the next group of parameters is gathered in a backward pass.
enum class GatherAhead : uint8_t {
  kNever,           ///< when it is used
  kBeforeGradient,  ///< when the one before it is used: two groups are in memory
  kAfterGradient,   ///< when the one before it has its gradients
};

/// Who has the values that parameters wait for (operators/deferred_values.h).
enum class DeferredReads : uint8_t {
  kNone,      ///< none waits
  kOwnRows,   ///< all ranks, and each reads its rows
  kFromRank0  ///< rank 0, which reads them for all
};

/// Parameters that are gathered together, and whose gradients are reduced together.
struct ShardingGroup {
  /// For messages.
  std::string name;
  /// The path of the module whose unit it is; "" is the model, which also has the groups by size.
  std::string unit = {};
  /// Their dotted names; of a tied parameter the first.
  std::vector<std::string> parameters;
  /// Whether the parameters are freed after the forward pass, and gathered again in the backward
  /// pass. If not, they stay until the backward pass has made their gradients. In passes without
  /// gradients, which no backward pass follows, all are freed.
  bool reshard_after_forward = true;
  /// Whether they are freed when passes end. If not, they stay until their shards change, as by an
  /// optimizer's step.
  bool reshard_after_backward = true;
  /// Whether ranks may have gradients of different parameters of it, as of experts that only some
  /// ranks' tokens reach. They are reduced when backward passes end, with zeros where there are
  /// none. If not, ranks must have the same ones.
  bool gradients_differ = false;
};

struct ShardingOptions {
  // ---- Groups.

  /// A parameter of no group is in one that is formed by size.
  std::vector<ShardingGroup> groups = {};
  /// Parameters that stay whole on each rank, and are neither reduced nor equal on all ranks.
  std::vector<std::string> ignored = {};
  /// Groups by size go up to the module that makes them at least this large.
  int64_t group_bytes = int64_t{1} << 20;
  /// As ShardingGroup's, for groups by size.
  bool reshard_after_forward = true;
  bool reshard_after_backward = true;
  /// Whether parameters are whole in memory at all times, so that only gradients and what
  /// optimizers keep are divided. A shard that has its parameter's dtype and device is memory of
  /// the parameter, which an optimizer's step changes in place; the other ranks' rows are gathered
  /// when a parameter is used afterwards. The two options above have no effect then.
  bool keeps_parameters = false;

  // ---- Gathering.

  /// Whether the next group is gathered while one is used in a forward pass.
  bool gather_ahead = true;
  GatherAhead gather_ahead_in_backward = GatherAhead::kBeforeGradient;

  /// Groups that are used again within so many elements of other groups stay until then, while at
  /// most `max_live` elements are gathered. 0: two groups take turns.
  int64_t max_reuse_distance = 0;
  int64_t max_live = std::numeric_limits<int64_t>::max();

  // ---- Precision. Absent: what the tensors have.

  /// What floating-point parameters are while the model computes. They are cast before they are
  /// gathered; shards stay in float32, those of trained parameters in half precision become
  /// so. Modules with running statistics keep theirs, as LibTorch's kernels want it.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  /// What gradients are sent in; absent: param_dtype.
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  /// What gradients of trained shards add up in. Absent: the shards' dtype, as optimizers want it.
  std::optional<c10::ScalarType> gradient_dtype = std::nullopt;
  /// Whether a shard's rows are kept in param_dtype as well, on the device: they are cast once
  /// after each change, not for each gather.
  bool keeps_cast_shards = false;

  /// Parameters that are gathered as one byte per element; null: none.
  std::shared_ptr<PackedParameters> packed = nullptr;

  // ---- Reduction.

  /// What sums of gradients are divided by; absent: the number of ranks.
  std::optional<double> gradient_divide_factor = std::nullopt;
  /// What gradients are divided by before they are added up, so that sums do not overflow; the
  /// rest is divided afterwards. 1: what half precision needs.
  double gradient_predivide_factor = 1;
  /// Whether each backward pass reduces gradients, also one that is to leave them on its rank.
  bool reduces_each_pass = false;
  /// Called before a group's gradients are reduced, with its trained parameters and their whole
  /// gradients, flat and as they are sent, which it may change in place. It may be collective over
  /// the ranks with shards, which all call it with the same parameters. Null: nothing.
  std::function<void(const std::vector<at::Tensor>& parameters,
                     const std::vector<at::Tensor>& gradients)>
      before_reduction = nullptr;

  // ---- Values.

  /// Called with the parameters of a group that are on "meta", before they are divided: those that
  /// it leaves there get the values of their recorded construction. Null: all do.
  std::function<void(const std::vector<at::Tensor>& parameters)> initialise = nullptr;
  /// The same on all ranks, as are the parameters that wait for values where each reads its rows.
  DeferredReads deferred = DeferredReads::kNone;

  // ---- Place.

  /// Shards, their gradients and so the state of optimizers are on the host.
  bool offload = false;
  /// With offload: the part of all elements, from 0 to 1, that stays on the device, where the
  /// model's first groups are as far as they fit into it.
  double part_on_device = 0;
  /// Whether that is in pinned memory, which copies need to go on beside computation.
  bool pin_memory = true;

  // ---- Disk.

  /// Shards, and the state of optimizers, are on a disk between the steps of an optimizer
  /// (optim/state_on_disk.h); gradients are on the host, as with `offload`. Rows are kept in
  /// param_dtype besides, to be gathered: on the device if `keeps_cast_shards` or
  /// `keeps_parameters`, else on the host, or on a disk. Absent: in memory.
  std::optional<SwapOptions> shards_on_disk = std::nullopt;
  /// Rows in param_dtype are on a disk, from which the next group's are read while one is used.
  /// Absent: in memory.
  std::optional<SwapOptions> rows_on_disk = std::nullopt;
  /// So many elements of a rank's rows stay on the host in spite of that: those of the first
  /// groups that fit.
  int64_t rows_on_host = 0;
};

/// What becomes of the values of a sharded model besides its parameters. Absent: nothing.
struct ShardedPrecision {
  /// The floating-point inputs of a forward pass.
  std::optional<c10::ScalarType> input_dtype = std::nullopt;
  /// Its floating-point outputs.
  std::optional<c10::ScalarType> output_dtype = std::nullopt;
  /// Floating-point buffers, but for those of modules with running statistics.
  std::optional<c10::ScalarType> buffer_dtype = std::nullopt;
  /// Whether operators choose their precision all the same.
  bool autocast = false;
};

}  // namespace accelerate
