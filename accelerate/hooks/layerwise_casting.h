/// Layers that are stored in a narrow dtype and compute in another.
///
///   attach_layerwise_casting_hooks(*net, at::kFloat8_e4m3fn, at::kBFloat16,
///                                  {.skip_modules_pattern = {"^head$", "norm"}});
///
/// The parameters of each Linear, Conv1d to Conv3d and ConvTranspose1d to ConvTranspose3d are kept
/// in `storage_dtype`. They look like tensors of `compute_dtype`, and when an operator uses one,
/// its values are cast, until the operator ends (modules/value_at_use.h). So memory has
/// the narrow values, and those of the parameters of one operator. The model is any: no module
/// needs to run hooks, and code that uses a layer's weight without calling the layer works as well.
/// Results are those of a model whose parameters were rounded to the narrow dtype.
///
/// Operators that write to a parameter, such as an optimizer's step or a load, change what is kept,
/// rounded. What replaces a parameter's memory, torch::nn::Module::to above all, ends its cast;
/// move_module (value_at_use.h), Accelerator::prepare and hooks move the narrow values.
///
/// Errors:  c10::ValueError for dtypes without floating point, a pattern that is not a regular
///          expression, a layer on the meta device, and a parameter that is brought into memory
///          otherwise, as by shards. No layer has changed then.
/// Local. Threads: layers compute on any, as value_at_use.h says; the functions: the rank's thread.
/// Mirrors: accelerate hooks.py, LayerwiseCastingHook, and big_modeling.py,
///          attach_layerwise_casting_hooks.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "accelerate/hooks/model_hook.h"

namespace accelerate {

struct LayerwiseCastingOptions {
  /// Regular expressions; modules in whose names one is found stay as they are, with all below.
  std::vector<std::string> skip_modules_pattern = {};
  /// The same by the names of classes, such as "LayerNorm".
  std::vector<std::string> skip_modules_classes = {};
  /// Whether the host does not wait for casts.
  bool non_blocking = false;
};

/// Layers that are cast already are left as they are.
void attach_layerwise_casting_hooks(torch::nn::Module& module, at::ScalarType storage_dtype,
                                    at::ScalarType compute_dtype,
                                    const LayerwiseCastingOptions& options = {});

/// The same for all floating-point parameters of one module and those below, of any class, as a
/// hook. Buffers stay as they are. When it is detached parameters are ordinary ones in
/// `storage_dtype`.
class LayerwiseCastingHook final : public ModelHook {
 public:
  LayerwiseCastingHook(at::ScalarType storage_dtype, at::ScalarType compute_dtype,
                       bool non_blocking = false);

  void init_hook(torch::nn::Module& module) override;
  void detach_hook(torch::nn::Module& module) override;

 private:
  const at::ScalarType storage_dtype_, compute_dtype_;
  const bool non_blocking_;
};

namespace internal {

// The module's own parameters become ordinary ones in the dtype in which they are stored.
void end_casts(const torch::nn::Module& module);

bool is_cast(const at::Tensor& parameter);

}  // namespace internal
}  // namespace accelerate
