#include "accelerate/checkpoint/objects/gradient_state_dict.h"

#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include "accelerate/tensors/take_over.h"
#include "accelerate/values/json_field.h"

namespace accelerate {
namespace {

using internal::field_of;
using nlohmann::ordered_json;

constexpr char kWhere[] = "the gradients' state";
constexpr char kSparse[] = "sparse";
constexpr char kIsCoalesced[] = "is_coalesced";

// Each once.
NamedTensors parameters_of(const torch::nn::Module& module) {
  NamedTensors parameters;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    parameters.emplace_back(item.key(), parameter);
  }
  return parameters;
}

class Tensors {
 public:
  explicit Tensors(NamedTensors tensors) {
    for (auto& [name, tensor] : tensors) {
      TORCH_CHECK_VALUE(tensor.defined() && tensor.layout() == at::kStrided, kWhere, ": \"", name,
                        "\" is no dense tensor");
      TORCH_CHECK_VALUE(tensors_.emplace(name, std::move(tensor)).second, kWhere, " has two \"",
                        name, "\"");
    }
  }
  // Undefined where there is none.
  at::Tensor take(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return {};
    at::Tensor tensor = std::move(found->second);
    tensors_.erase(found);
    return tensor;
  }
  void check_all_taken() const {
    TORCH_CHECK_VALUE(tensors_.empty(), kWhere, " has \"", tensors_.begin()->first,
                      "\", which is no parameter of this model");
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

void check(bool fits, const std::string& name, const at::Tensor& tensor,
           const at::Tensor& parameter) {
  TORCH_CHECK_VALUE(fits, kWhere, ": \"", name, "\" has shape ", tensor.sizes(), " and dtype ",
                    tensor.scalar_type(), ", its parameter ", parameter.sizes(), " and ",
                    parameter.scalar_type());
}

bool is_of_kind(const at::Tensor& tensor, const at::Tensor& parameter) {
  return tensor.is_complex() == parameter.is_complex() &&
         tensor.is_floating_point() == parameter.is_floating_point();
}

at::Tensor dense(at::Tensor tensor, const std::string& name, const at::Tensor& parameter) {
  check(tensor.sizes() == parameter.sizes() && is_of_kind(tensor, parameter), name, tensor,
        parameter);
  return internal::take_over(std::move(tensor), parameter, parameter.scalar_type(),
                             /*like_parameter=*/true);
}

at::Tensor sparse(const ordered_json& entry, Tensors& tensors, const std::string& name,
                  const at::Tensor& parameter) {
  const auto is_coalesced = field_of<bool>(entry, kIsCoalesced, name + " in " + kWhere);
  at::Tensor indices = tensors.take(name + ".indices"), values = tensors.take(name + ".values");
  TORCH_CHECK_VALUE(indices.defined() && values.defined(), kWhere,
                    " lacks the indices or values of \"", name, "\"");
  TORCH_CHECK_VALUE(indices.scalar_type() == at::kLong && indices.dim() == 2 &&
                        indices.size(0) >= 1 && indices.size(0) <= parameter.dim(),
                    kWhere, ": \"", name, ".indices\" has shape ", indices.sizes(), " and dtype ",
                    indices.scalar_type());
  std::vector<int64_t> sizes = {indices.size(1)};
  for (int64_t dim = indices.size(0); dim < parameter.dim(); ++dim) {
    sizes.push_back(parameter.size(dim));
  }
  check(values.sizes() == at::IntArrayRef(sizes) && is_of_kind(values, parameter), name + ".values",
        values, parameter);
  for (int64_t dim = 0; dim < indices.size(0) && indices.size(1) > 0; ++dim) {
    const auto least = indices[dim].min().item<int64_t>();
    const auto most = indices[dim].max().item<int64_t>();
    TORCH_CHECK_VALUE(least >= 0 && most < parameter.size(dim), kWhere, ": \"", name,
                      ".indices\" points outside of its parameter: ", least, " to ", most);
  }
  indices = internal::take_over(std::move(indices), parameter, at::kLong, /*like_parameter=*/false);
  values = internal::take_over(std::move(values), parameter, parameter.scalar_type(),
                               /*like_parameter=*/false);
  at::Tensor gradient = at::_sparse_coo_tensor_unsafe(indices, values, parameter.sizes());
  return gradient._coalesced_(is_coalesced);
}

}  // namespace

StateDict gradient_state_dict(const torch::nn::Module& module) {
  at::NoGradGuard no_grad;
  StateDict state;
  for (const auto& [name, parameter] : parameters_of(module)) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.layout() == at::kStrided) {
      state.tensors.emplace_back(name, gradient.detach());
      continue;
    }
    TORCH_CHECK_VALUE(gradient.layout() == at::kSparse, "the gradient of \"", name, "\" is ",
                      gradient.layout(), ", which a checkpoint cannot hold");
    state.tensors.emplace_back(name + ".indices", gradient._indices());
    state.tensors.emplace_back(name + ".values", gradient._values().detach());
    state.values[kSparse][name] = {{kIsCoalesced, gradient.is_coalesced()}};
  }
  return state;
}

void load_gradient_state_dict(torch::nn::Module& module, StateDict state) {
  at::NoGradGuard no_grad;
  ordered_json sparse_ones = ordered_json::object();
  if (!state.values.is_null()) {
    sparse_ones = internal::json_member(state.values, kSparse, kWhere);
    TORCH_CHECK_VALUE(sparse_ones.is_object(), kWhere, ": \"", kSparse, "\" is no object");
  }
  Tensors tensors(std::move(state.tensors));
  const NamedTensors parameters = parameters_of(module);
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    if (const auto entry = sparse_ones.find(name); entry != sparse_ones.end()) {
      gradients.push_back(sparse(*entry, tensors, name, parameter));
      continue;
    }
    at::Tensor gradient = tensors.take(name);
    if (gradient.defined()) gradient = dense(std::move(gradient), name, parameter);
    gradients.push_back(std::move(gradient));
  }
  tensors.check_all_taken();
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].second.mutable_grad() = std::move(gradients[i]);
  }
}

}  // namespace accelerate
