/// What techniques are told of a job and of the model that they are applied to.
///
/// Threads: values.
#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "accelerate/base/enums.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/technique.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/mesh/roles.h"

namespace accelerate {

struct FullyShardedDataParallelPlugin;
struct TorchDynamoPlugin;
class DeviceMesh;
class JobPrecision;
class ModelLayout;
struct ZeroConfig;

/// The facts about a job that techniques ask for. Objects behind its pointers outlive the plan.
struct ModelPlan {
  DistributedType distributed_type = DistributedType::kNo;
  c10::Device device = c10::kCPU;
  /// This rank among all of the job.
  int rank = 0;
  int num_ranks = 1;
  /// What this rank's groups are for: those of `tokens` average gradients.
  RankRoles roles = {};
  /// Those of `roles.shards` among which parameters are divided from a forward pass to its backward
  /// pass; null: all.
  ProcessGroupPtr after_forward = nullptr;
  /// How ranks are arranged, and their groups; null where nothing arranges them.
  Mesh mesh = Mesh(MeshSizes());
  const DeviceMesh* device_mesh = nullptr;
  /// Where the parts are of the tensors of which the module has some; null: it has all of the
  /// model.
  std::shared_ptr<const ModelLayout> layout = nullptr;
  /// How models are divided; null: by ShardedDataParallelKwargs alone. Resolved.
  const FullyShardedDataParallelPlugin* fsdp = nullptr;
  /// The same by ZeRO; null: not.
  const ZeroConfig* zero = nullptr;
  /// How models are compiled, resolved; null: not.
  const TorchDynamoPlugin* dynamo = nullptr;
  /// Whether the job has a plugin of FSDP or DeepSpeed, which can offload what models have.
  bool has_sharding_plugin = false;
  /// Whether the parameters of models become shards: of the ranks of `roles.shards`, or of this
  /// rank alone.
  bool makes_shards = false;
  /// Whether operators choose their precision in models that are divided too. Otherwise the
  /// parameters of such models have one dtype, and operators compute in it.
  bool autocasts_shards = false;
  /// Whether ranks gather what must be equal among them, to compare it, as in debug mode.
  bool compares_ranks = false;
  /// The options of all techniques.
  const KwargsHandlers& handlers;
  const JobPrecision& precision;
};

/// A model of which techniques say how they divide it, before the plan is made: the ranks' groups
/// follow from what they say.
struct LayoutContext {
  /// Whole, as its user gave it.
  const ModelState& model;
  /// How ranks are arranged.
  const Mesh& mesh;
  /// As the techniques before divide the model; null: they leave it whole.
  const ModelLayout* layout = nullptr;
  /// The options of all techniques.
  const KwargsHandlers& handlers;
};

/// One model that gets its techniques.
struct TechniqueContext {
  /// With the techniques that it has had so far.
  const ModelState& model;
  const ModelPlan& plan;
  /// Whether it is prepared to be trained.
  bool trains = true;
  /// The ranks that train this model together from now on; null for none, and for one.
  ProcessGroupPtr group;
  /// Whether its parameters become shards now.
  bool makes_shards = false;
  /// The techniques that were made for it by now, the outermost first.
  const Techniques& made;
};

/// Whether the model's parameters become shards.
inline bool is_sharded(const TechniqueContext& context) { return context.makes_shards; }

}  // namespace accelerate
