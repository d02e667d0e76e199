/// A model whose Linear layers are computed in fp8.
///
///   auto fp8 = Fp8Model::convert(*module, plan, group);
///   {
///     Fp8Model::Scope scope = fp8->forward_scope();
///     output = module->forward(input);
///   }
///   loss.backward();                      // outside of the scope
///
/// The module is unchanged. Inside the scope products with the weights of converted layers are
/// computed in fp8 (see operators/operator_mode.h), also where a function uses such a weight. A
/// module of another type that computes what Linear computes is not converted.
///
/// Layers and scales by backend:
///   TE     all Linear; delayed scaling, or blocks of 32; in training, and by option in evaluation.
///   MSAMP  all Linear; one scale per tensor, from the tensor itself.
///   AO     all Linear but the first and the last, or those that the filter accepts; scales as with
///          MSAMP; in evaluation too.
/// A layer with a dimension that is not a multiple of 16 stays in high precision. Layers that share
/// a weight have one state.
///
/// Delayed scales are computed at the start of each training forward with gradients, from the
/// tensors since the previous one, including those of backward passes. This is the only collective,
/// one for all layers. A pass without gradients (NoGradGuard, InferenceMode) changes no scale.
/// Activation checkpointing recomputes layers outside of the scope: it installs the handlers that
/// current_operator_handlers() gave inside, as accelerate::checkpoint does.
///
/// Mirrors: accelerate utils/transformer_engine.py, convert_model (here Fp8Model::convert),
///          apply_fp8_autowrap (here Fp8Model::forward_scope) and contextual_fp8_autocast (here
///          Fp8Model::Scope); utils/ao.py, convert_model_to_fp8_ao (here Fp8Model::convert) and the
///          filters.
/// Differs: a filter is made for a whole model. HF Accelerate's default filter looks for the first
///          and last layer inside the layer that it is asked about.
/// Threads: those of the module. The Fp8Model may be destroyed before the graph of a forward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/precision/fp8_quantize.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

// ---- One Linear layer in fp8: input x weight^T + bias, and its gradients.
//
//   forward   output   = input [M, K] x weight [N, K]^T     E4M3, E4M3
//   dgrad     of input = gradient [M, N] x weight           E5M2 (HYBRID) or E4M3, E4M3
//   wgrad     of weight= gradient^T x input                 the same
//
// Each of the three products may stay in high precision, where it equals at::linear's bit for bit.
// The backward pass keeps quantised operands, one byte per element. High precision means
// autocast's type if autocast is on, otherwise the input's type; the output has the same type. The
// weight's gradient has the weight's type. There is no second derivative.
//
// A device that multiplies fp8 itself (CUDA from capability 8.9 on) does so. Elsewhere the same
// numbers are multiplied in float32, which emulates the arithmetic but not its speed. Both sum in
// float32, scale the sum, add the bias and round once.
//
// Local. Threads: any; a layer's delayed scales belong to one thread at a time.

/// Where a tensor's scale comes from.
enum class Fp8Scaling {
  kCurrent,  ///< the tensor's own largest value
  kDelayed,  ///< the largest values of past steps
  kBlocks,   ///< each block of 32 values along the summed dimension has a power of two
};

struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::kCurrent;
  at::ScalarType gradient_format = kE5M2;
  /// Products that stay in high precision.
  bool override_fprop = false;
  bool override_dgrad = false;
  bool override_wgrad = false;
};

/// How a layer's products are computed. Graphs that went through the layer keep it alive.
struct Fp8Layer : torch::CustomClassHolder {
  Fp8Recipe recipe;
  /// Whether the device multiplies fp8 itself.
  bool native = false;
  /// Null unless scaling is delayed.
  std::shared_ptr<DelayedScales> scales;
  int64_t index = 0;
  /// Whether weights are in memory only while operators use them. The backward pass quantises them
  /// again then, in place of a copy that would stay until then.
  bool is_sharded = false;
  /// The weight in E4M3, of which ranks gather shards. Undefined: the layer quantises it.
  Fp8Tensor gathered;
};

/// Tries whether LibTorch multiplies fp8 on this device, with a small product.
bool has_native_fp8_matmul(c10::Device device);

/// Whether the rank's GPU, or the machine's first one if the rank computes elsewhere, multiplies
/// fp8: NVIDIA's from capability 8.9 on. The Runtime says so, or the GPU is asked with a small
/// product. Without it, layers in fp8 compute the same numbers in float32.
/// Local. Threads: any. Errors: none.
/// Mirrors: accelerate utils/environment.py, check_cuda_fp8_capability.
bool check_cuda_fp8_capability(const Runtime& runtime = Runtime::current());

/// Differentiable in input, weight and bias.
/// `records`: whether the tensors' amax is recorded for later scales.
/// Shapes: input [..., K], weight [N, K], bias [N] or undefined; result [..., N].
/// Errors: c10::Error in a backward pass with create_graph.
at::Tensor fp8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      const c10::intrusive_ptr<Fp8Layer>& layer, bool records);

// ---- A model's layers.

/// Decides whether a layer is converted, given its name in the model.
using Fp8Filter = std::function<bool(const torch::nn::Module& module, const std::string& name)>;

/// A Linear layer with its name, such as "encoder.0.fc"; the model itself has the name "".
using NamedLinear = std::pair<std::string, const torch::nn::LinearImpl*>;

/// All Linear layers in module order, each once. Local.
std::vector<NamedLinear> linear_layers(const torch::nn::Module& model);

/// The names of the first and the last Linear layer; nothing if the model has none. Local.
std::pair<std::optional<std::string>, std::optional<std::string>> find_first_last_linear_layers(
    const torch::nn::Module& model);

/// False for a Linear layer with a dimension that is not a multiple of 16, and for listed names.
bool filter_linear_layers(const torch::nn::Module& module, const std::string& name,
                          const std::vector<std::string>& layers_to_filter);

/// A filter that rejects these and the model's first and last Linear layer.
Fp8Filter filter_first_and_last_linear_layers(const torch::nn::Module& model);

/// Which of a model's Linear layers were converted.
struct Fp8Report {
  struct Skipped {
    std::string name;
    std::string reason;
  };

  FP8BackendType backend = FP8BackendType::kNo;
  /// By name, in module order.
  std::vector<std::string> converted;
  std::vector<Skipped> skipped;

  /// A line per layer.
  std::string to_string() const;
};

class Fp8Model : public LinearHandler, public std::enable_shared_from_this<Fp8Model> {
 public:
  /// Chooses the layers. Local. `module` outlives the result. The ranks of `group` agree on delayed
  /// scales; null for a single rank.
  static std::shared_ptr<Fp8Model> convert(torch::nn::Module& module, const Fp8Plan& plan,
                                           ProcessGroupPtr group = nullptr);

  const Fp8Report& report() const { return report_; }

  /// The model's parameters are shards from now on; see Fp8Layer::is_sharded.
  void set_sharded();
  /// What the layer of this weight uses in its place from now on; see Fp8Layer::gathered.
  void set_gathered_weight(const at::Tensor& weight, Fp8Tensor gathered);

  /// The weights of converted layers, in module order.
  const std::vector<at::Tensor>& weights() const { return weights_; }

  using Scope = OperatorModeScope;

  /// The scope for one call of the module's forward. Collective over the group with delayed
  /// scaling, in training and with gradients. If `agrees` is false it is local, and this rank's
  /// scales follow its own values until the next forward that agrees: for passes that not all ranks
  /// make, such as those on uneven inputs, and for passes that only accumulate gradients.
  [[nodiscard]] Scope forward_scope(bool agrees = true);

  /// The state of delayed scaling; empty with other recipes. Local.
  std::map<std::string, at::Tensor> state_dict() const;
  /// Errors: c10::ValueError that names the entry that does not fit this model; nothing is changed.
  void load_state_dict(const std::map<std::string, at::Tensor>& state);

  std::optional<at::Tensor> linear(const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& bias) override;

 private:
  Fp8Model(torch::nn::Module& module, const Fp8Plan& plan, ProcessGroupPtr group);
  void use_device();

  const torch::nn::Module& module_;
  const Fp8Plan plan_;
  const ProcessGroupPtr group_;
  Fp8Report report_;
  std::vector<at::Tensor> weights_;  // keeps the keys of layers_ alive
  std::unordered_map<at::TensorImpl*, c10::intrusive_ptr<Fp8Layer>> layers_;
  std::shared_ptr<DelayedScales> scales_;
  std::optional<c10::Device> device_;
  bool takes_step_ = false;  // whether the latest pass began a step of the scales
};

/// Whether any layer was converted with TransformerEngine's, or torchao's, recipe.
inline bool has_transformer_engine_layers(const Fp8Model& model) {
  return model.report().backend == FP8BackendType::kTe && !model.weights().empty();
}
inline bool has_ao_layers(const Fp8Model& model) {
  return model.report().backend == FP8BackendType::kAo && !model.weights().empty();
}

}  // namespace accelerate
