/// Calls of models whose number of inputs is known at run time alone, as train steps of
/// Megatron-LM's kinds make them (accelerate/megatron/train_step.h).
///
/// Errors:  c10::ValueError naming the number of tensors.
/// Threads: the rank's thread.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "accelerate/forward/forward_call.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/tensors/tree.h"

namespace accelerate::internal {

template <size_t /*I*/>
using EachTensor = const at::Tensor&;

/// Whether a module's forward takes so many tensors, and gives a tree of tensors.
template <typename Module, size_t... I>
constexpr bool takes_tensors(std::index_sequence<I...> /*which*/) {
  using Forward = ModuleForward<Module>;
  if constexpr (std::is_invocable_v<const Forward&, EachTensor<I>...>) {
    return kMayHoldTensors<
        std::remove_cvref_t<std::invoke_result_t<const Forward&, EachTensor<I>...>>>;
  } else {
    return false;
  }
}

template <typename Module>
concept TakesOneTensor = requires(const ModuleForward<Module>& forward, const at::Tensor& input) {
  { forward(input) } -> std::convertible_to<at::Tensor>;
};

/// The outputs of a model for up to five tensors, which are as many as T5TrainStep gives.
template <size_t kCount = 1, typename Module>
std::vector<at::Tensor> call_with_tensors(PreparedModel<Module>& model,
                                          const std::vector<at::Tensor>& inputs) {
  constexpr size_t kMost = 5;
  if constexpr (kCount <= kMost) {
    if (inputs.size() != kCount) return call_with_tensors<kCount + 1>(model, inputs);
    constexpr auto kWhich = std::make_index_sequence<kCount>();
    if constexpr (takes_tensors<Module>(kWhich)) {
      const auto output = [&]<size_t... I>(std::index_sequence<I...> /*which*/) {
        return model(inputs[I]...);
      }(kWhich);
      std::vector<at::Tensor> outputs;
      tree_for_each(output, [&](const at::Tensor& each) { outputs.push_back(each); });
      return outputs;
    }
  }
  TORCH_CHECK_VALUE(false, "MegatronEngine: the train step gives the model ", inputs.size(),
                    " tensors, but its forward does not take so many, or gives no tensors");
  return {};
}

}  // namespace accelerate::internal
