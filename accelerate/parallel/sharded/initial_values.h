/// The values that a model has before it is divided: its own, or for tensors on "meta" those of the
/// recorded construction, of a checkpoint that they wait for (operators/deferred_values.h), of the
/// plugin's param_init_fn, or of rank 0.
///
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/fsdp_utils.py, what fsdp2_prepare_model does for
///          cpu_ram_efficient_loading; param_init_fn of torch.distributed.fsdp, which makes the
///          memory as well.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/parallel/residency/sharding_options.h"

namespace accelerate {

struct FullyShardedDataParallelPlugin;

class InitialValues {
 public:
  /// `plugin` is resolved, or null; `all` are the ranks that begin with its rank 0's values.
  InitialValues(std::shared_ptr<torch::nn::Module> module,
                const FullyShardedDataParallelPlugin* plugin, const ProcessGroupPtr& all,
                c10::Device device);

  /// Collective. Errors: c10::ValueError, on all ranks, naming the ranks and a parameter or buffer
  /// of theirs that has no values and no way to them; or a rank that waits for other values than
  /// rank 0.
  void check();
  /// Who has the values that parameters wait for. After check().
  DeferredReads deferred() const { return deferred_; }

  /// Gives tensors on "meta", parameters or buffers of the module, memory on the device, and what
  /// param_init_fn makes of their module; that is called once, when all the module's own tensors
  /// have memory. Recorded tensors are left alone, but for a rank whose values do not count
  /// (cpu_ram_efficient_loading, or version 1's sync_module_states, on another rank than 0; what
  /// waits for a checkpoint of which rank 0 sends the values), where memory is as it comes. They
  /// stay the same tensors, so ties stay.
  void materialise(const std::vector<at::Tensor>& tensors);
  /// The same for all buffers, and for those that were recorded their values. Collective where some
  /// wait for a checkpoint. Errors: those of reading, on all ranks.
  void materialise_buffers();

 private:
  bool can_be_made(const at::Tensor& tensor) const;
  std::string deferred_text() const;

  const std::shared_ptr<torch::nn::Module> module_;
  const std::function<void(torch::nn::Module&)> init_;  // may be null
  const ProcessGroupPtr all_;
  const bool from_rank_0_;
  const c10::Device device_;
  DeferredReads deferred_ = DeferredReads::kNone;
  std::unordered_map<const c10::TensorImpl*, torch::nn::Module*> owners_;
  std::unordered_set<const torch::nn::Module*> initialised_;
};

}  // namespace accelerate
