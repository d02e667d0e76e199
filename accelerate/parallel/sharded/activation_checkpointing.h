/// Recomputation of the parts of a model that it calls by accelerate::block(), as the fsdp_plugin
/// or the configuration of ZeRO asks for it; between the passes their inputs are on the device or,
/// with activation_checkpointing_offload, on the host.
///
/// Local. Errors: c10::ValueError from the first forward pass with gradients, if the model calls
///         block() for none of the modules that are to be recomputed.
/// Threads: any; passes on several threads do not disturb each other.
/// Mirrors: accelerate utils/fsdp_utils.py, fsdp2_apply_ac; accelerator.py, which wraps modules.
#pragma once

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/forward/technique.h"
#include "accelerate/operators/block.h"

namespace accelerate {

struct FullyShardedDataParallelPlugin;
struct TechniqueContext;

class ActivationCheckpointingTechnique final : public Technique {
 public:
  static constexpr std::string_view kName = "activation_checkpointing";

  explicit ActivationCheckpointingTechnique(Recomputation recomputation)
      : recomputation_(std::make_shared<const Recomputation>(std::move(recomputation))) {}

  std::string_view name() const override { return kName; }
  void forward(ForwardPass& pass) override;

 private:
  const std::shared_ptr<const Recomputation> recomputation_;
  std::atomic<bool> has_blocks_ = false;
};

/// The technique for the modules that the plugin's auto_wrap_policy picks, or for all without one.
std::unique_ptr<Technique> recomputation_of(const torch::nn::Module& module,
                                            const FullyShardedDataParallelPlugin& plugin);

/// The same; null where the plugin does not ask for it.
std::unique_ptr<Technique> make_activation_checkpointing_technique(const TechniqueContext& context);

}  // namespace accelerate
