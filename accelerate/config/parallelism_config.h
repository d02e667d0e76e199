/// How a job's ranks are arranged in a mesh: how many there are along each axis, and how the axes
/// that divide sequences and layers work.
///
///   Accelerator accelerator({.parallelism_config = ParallelismConfig({.tp_size = 4})});
///
/// accelerate/mesh/mesh.h has the ranks of a mesh; accelerate/docs/parallelism.md has more.
/// Units:   sizes are numbers of ranks.
/// Errors:  c10::ValueError with HF Accelerate's text for sizes that do not go together, and naming
///          the variable for an environment variable that cannot be read.
/// Threads: values, without synchronisation of their own.
/// Mirrors: accelerate parallelism_config.py, ParallelismConfig; utils/dataclasses.py,
///          TorchTensorParallelConfig, TorchContextParallelConfig, DeepSpeedSequenceParallelConfig
///          and TorchTensorParallelPlugin.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "absl/types/span.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/enums.h"
#include "accelerate/base/fields.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/base/rank_layout.h"
#include "accelerate/platform/environment.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// The axes that divide the ranks and that `axis` consists of, outermost first: itself, or those
/// that it joins.
absl::Span<const MeshAxis> parts_of(MeshAxis axis);

/// Where the pipeline's stages stand among the axes.
enum class PpPlacement {
  kOutermost,          ///< a stage's ranks are neighbours, with all replicas of the stage
  kInsideDpReplicate,  ///< a replica's ranks are neighbours, with all its stages
};

ACCELERATE_ENUM_TEXTS(PpPlacement, "pp_placement", "outermost", "inside_dp_replicate")

/// Options of tensor parallelism.
struct TorchTensorParallelConfig {
  /// Has no effect but a warning, as in HF Accelerate.
  bool enable_async_tp = false;
};
ACCELERATE_STRUCT(TorchTensorParallelConfig, enable_async_tp)

/// Options of context parallelism. An absent field takes the value of its environment variable, or
/// the default named beside it; the variables are called PARALLELISM_CONFIG and what the field's
/// comment ends with.
struct TorchContextParallelConfig {
  /// How ranks exchange keys and values: "allgather" or "alltoall": allgather. _CP_COMM_STRATEGY
  std::optional<std::string> cp_comm_strategy = std::nullopt;
};
ACCELERATE_STRUCT(TorchContextParallelConfig, cp_comm_strategy)

/// Options of sequence parallelism. Absent fields are as above.
struct DeepSpeedSequenceParallelConfig {
  /// The length of all sequences; it is needed, and its variable is read, only where
  /// sp_seq_length_is_variable is false. _SP_SEQ_LENGTH
  std::optional<int64_t> sp_seq_length = std::nullopt;
  /// Whether batches may differ in the length of their sequences: true.
  /// _SP_SEQ_LENGTH_IS_VARIABLE
  std::optional<bool> sp_seq_length_is_variable = std::nullopt;
  /// "flash_attention_2", "flash_attention_3", "sdpa", or a hub's kernel with "flash-attn" in its
  /// name; absent: the engine's choice. _SP_ATTN_IMPLEMENTATION
  std::optional<std::string> sp_attn_implementation = std::nullopt;
};
ACCELERATE_STRUCT(DeepSpeedSequenceParallelConfig, sp_seq_length, sp_seq_length_is_variable,
                  sp_attn_implementation)

/// Errors: c10::ValueError for a layout that a job cannot have, with the nearest one that it can.
void check_layout(const RankLayout& layout);

/// With every absent field filled in, and values checked. Local.
TorchTensorParallelConfig resolve(TorchTensorParallelConfig handler,
                                  const Environment& environment);
TorchContextParallelConfig resolve(TorchContextParallelConfig handler,
                                   const Environment& environment);
DeepSpeedSequenceParallelConfig resolve(DeepSpeedSequenceParallelConfig handler,
                                        const Environment& environment);

/// Deprecated: ParallelismConfig's tp_size.
struct TorchTensorParallelPlugin {
  int64_t tp_size = 1;
};
ACCELERATE_STRUCT(TorchTensorParallelPlugin, tp_size)

/// The arguments of a ParallelismConfig. An absent size is that of its environment variable,
/// PARALLELISM_CONFIG_DP_REPLICATE_SIZE and so on, or 1.
struct ParallelismOptions {
  std::optional<int64_t> dp_replicate_size = std::nullopt;
  std::optional<int64_t> dp_shard_size = std::nullopt;
  std::optional<int64_t> tp_size = std::nullopt;
  std::optional<int64_t> cp_size = std::nullopt;
  /// "torch", the only one. PARALLELISM_CONFIG_CP_BACKEND
  std::optional<std::string> cp_backend = std::nullopt;
  std::optional<int64_t> sp_size = std::nullopt;
  /// "deepspeed", the only one. PARALLELISM_CONFIG_SP_BACKEND
  std::optional<std::string> sp_backend = std::nullopt;
  /// Absent: the defaults where the axis has several ranks, else none.
  std::optional<TorchTensorParallelConfig> tp_handler = std::nullopt;
  std::optional<TorchContextParallelConfig> cp_handler = std::nullopt;
  std::optional<DeepSpeedSequenceParallelConfig> sp_handler = std::nullopt;
  /// HF Accelerate has no pipelines.
  std::optional<int64_t> pp_size = std::nullopt;
  /// Outermost. PARALLELISM_CONFIG_PP_PLACEMENT
  std::optional<PpPlacement> pp_placement = std::nullopt;
  /// How many of the dp_shard_size * cp_size * sp_size ranks have a part each of the experts of a
  /// layer; which ones is said at MeshAxis. HF Accelerate has no axis of experts.
  std::optional<int64_t> ep_size = std::nullopt;
};
ACCELERATE_STRUCT(ParallelismOptions, dp_replicate_size, dp_shard_size, tp_size, cp_size,
                  cp_backend, sp_size, sp_backend, tp_handler, cp_handler, sp_handler, pp_size,
                  pp_placement, ep_size)

/// What an Accelerator knows of its job and a configuration must fit.
struct AcceleratorFacts {
  /// As Accelerator::multi_device(), or whether ranks that compute on CPUs divide layers.
  bool multi_device = false;
  int num_processes = 1;
  /// Whether version 2 of FSDP shards its models, as dp_shard and ep do without a plug-in.
  bool is_fsdp2 = false;
  DistributedType distributed_type = DistributedType::kNo;
  /// Warnings are given there only.
  bool is_main_process = true;
};

class ParallelismConfig {
 public:
  explicit ParallelismConfig(ParallelismOptions options = {},
                             const Environment& environment = Runtime::current().environment());

  /// Ranks along an axis; of a joined one the product of its parts.
  int size(MeshAxis axis) const;
  /// Whether there is more than one rank along the axis.
  bool enabled(MeshAxis axis) const { return size(axis) > 1; }

  int dp_replicate_size() const { return size(MeshAxis::kDpReplicate); }
  int dp_shard_size() const { return size(MeshAxis::kDpShard); }
  int tp_size() const { return size(MeshAxis::kTp); }
  int cp_size() const { return size(MeshAxis::kCp); }
  int sp_size() const { return size(MeshAxis::kSp); }
  int pp_size() const { return size(MeshAxis::kPp); }
  int ep_size() const { return size(MeshAxis::kEp); }
  bool dp_replicate_enabled() const { return enabled(MeshAxis::kDpReplicate); }
  bool dp_shard_enabled() const { return enabled(MeshAxis::kDpShard); }
  bool tp_enabled() const { return enabled(MeshAxis::kTp); }
  bool cp_enabled() const { return enabled(MeshAxis::kCp); }
  bool sp_enabled() const { return enabled(MeshAxis::kSp); }
  bool pp_enabled() const { return enabled(MeshAxis::kPp); }
  bool ep_enabled() const { return enabled(MeshAxis::kEp); }
  /// Whether ranks share models without a plug-in that says so: those along dp_shard, and those
  /// that divide experts, along cp and sp as well.
  bool divides_models() const { return dp_shard_enabled() || ep_enabled(); }

  const std::string& cp_backend() const { return *options_.cp_backend; }
  const std::string& sp_backend() const { return *options_.sp_backend; }
  const std::optional<TorchTensorParallelConfig>& tp_handler() const { return options_.tp_handler; }
  const std::optional<TorchContextParallelConfig>& cp_handler() const {
    return options_.cp_handler;
  }
  const std::optional<DeepSpeedSequenceParallelConfig>& sp_handler() const {
    return options_.sp_handler;
  }
  PpPlacement pp_placement() const { return *options_.pp_placement; }

  /// The number of ranks that the configuration is for.
  int total_size() const { return data_parallel_size() * non_data_parallel_size(); }
  /// The sizes, without techniques.
  RankLayout layout() const;
  /// How many batches are trained at once.
  int data_parallel_size() const { return size(MeshAxis::kDp); }
  /// How many ranks share a batch.
  int non_data_parallel_size() const { return tp_size() * cp_size() * sp_size() * pp_size(); }

  // ---- The names of enabled axes.

  /// Axes whose ranks have batches of their own.
  std::vector<std::string> dp_dim_names() const { return enabled_names(parts_of(MeshAxis::kDp)); }
  /// Axes whose ranks have the same batch, in the order tp, cp, sp, pp.
  std::vector<std::string> non_dp_dim_names() const {
    return enabled_names({MeshAxis::kTp, MeshAxis::kCp, MeshAxis::kSp, MeshAxis::kPp});
  }
  std::vector<std::string> dp_shard_cp_dim_names() const {
    return enabled_names(parts_of(MeshAxis::kDpShardCp));
  }
  std::vector<std::string> dp_cp_dim_names() const {
    return enabled_names(parts_of(MeshAxis::kDpCp));
  }
  /// Those that FSDP uses: dp_replicate, if it is enabled, and the joined dp_shard_cp, always.
  std::vector<std::string> fsdp_dim_names() const;
  /// dp_dim_names, then non_dp_dim_names; the mesh has an order of its own.
  std::vector<std::string> active_mesh_dims() const;

  /// Checks that the configuration fits the accelerator. One without any axis makes all ranks of a
  /// job on several devices replicas. Warns of handlers for axes that are off. Local.
  /// Errors: c10::ValueError for another number of ranks, for ranks that are neither on devices of
  ///         their own nor driven by FSDP 2 or DeepSpeed, and for FSDP 2 without dp_shard, cp and
  ///         sp.
  /// Mirrors: ParallelismConfig._validate_accelerator.
  void validate_accelerator(const AcceleratorFacts& accelerator);

  /// Where no axis has batches of its own, replicas take the ranks that are left of
  /// `num_processes`, as DeepSpeed arranges them under sequence parallelism. Local.
  void fill_replicas(int num_processes);

  /// All arguments, with those that the environment or a default filled in.
  /// Differs: HF Accelerate's returns nothing.
  nlohmann::ordered_json to_json() const;

  bool operator==(const ParallelismConfig&) const = default;

 private:
  std::vector<std::string> enabled_names(absl::Span<const MeshAxis> axes) const;

  ParallelismOptions options_;  // all filled in but handlers of axes that are off
};

}  // namespace accelerate
