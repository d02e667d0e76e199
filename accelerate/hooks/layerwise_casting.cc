#include "accelerate/hooks/layerwise_casting.h"

#include <algorithm>
#include <memory>
#include <regex>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "absl/strings/str_cat.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

using torch::nn::Module;

class Cast final : public ValueMaker {
 public:
  Cast(at::Tensor stored, at::ScalarType dtype, bool non_blocking)
      : stored_(std::move(stored)), dtype_(dtype), non_blocking_(non_blocking) {
    tag_memory(stored_, MemoryKind::kParameter);
  }

  at::Tensor make() override { return stored_.to(dtype_, non_blocking_, /*copy=*/true); }
  void store(const at::Tensor& values) override { stored_.copy_(values, non_blocking_); }
  std::vector<KeptTensor> kept(const std::string& name) const override { return {{name, stored_}}; }
  const at::Tensor& stored() const { return stored_; }
  std::unique_ptr<ValueMaker> on_device(c10::Device device) const override {
    return std::make_unique<Cast>(stored_.to(device), dtype_, non_blocking_);
  }

 private:
  const at::Tensor stored_;
  const at::ScalarType dtype_;
  const bool non_blocking_;
};

Cast* find_cast(const at::Tensor& tensor) { return dynamic_cast<Cast*>(find_maker(tensor)); }

struct Dtypes {
  at::ScalarType storage;
  at::ScalarType compute;
  bool non_blocking;

  void check() const {
    for (const at::ScalarType dtype : {storage, compute}) {
      TORCH_CHECK_VALUE(at::isFloatingType(dtype), "layerwise casting: ", dtype,
                        " has no floating-point numbers");
    }
  }
};

void cast(const NamedTensors& parameters, const Dtypes& dtypes) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters) {
    TORCH_CHECK_VALUE(!tensor.is_meta(), "layerwise casting: \"", name,
                      "\" has no values (it is on the meta device); load the model first");
    TORCH_CHECK_VALUE(storage_owner(tensor) == nullptr || find_cast(tensor) != nullptr,
                      "layerwise casting: parameter \"", name,
                      "\" is brought into memory by another mechanism already, such as shards");
  }
  const std::vector<size_t> firsts = internal::first_identical_views(parameters);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, tensor] = parameters[i];
    if (find_cast(tensor) != nullptr) continue;
    if (firsts[i] != i) {
      internal::rebind(tensor, parameters[firsts[i]].second);
      continue;
    }
    at::Tensor stored = tensor.detach().to(dtypes.storage, dtypes.non_blocking).contiguous();
    make_at_use(tensor, name, dtypes.compute,
                std::make_unique<Cast>(std::move(stored), dtypes.compute, dtypes.non_blocking));
  }
}

// Appends the floating-point parameters.
void append_parameters(const Module& module, const std::string& prefix, bool recurse,
                       NamedTensors& parameters) {
  for (auto& [name, tensor] :
       named_module_tensors(module, {.include_buffers = false, .recurse = recurse})) {
    if (!at::isFloatingType(tensor.scalar_type())) continue;
    parameters.emplace_back(prefix.empty() ? std::move(name) : absl::StrCat(prefix, ".", name),
                            tensor);
  }
}

template <typename... Layers>
bool is_one_of(const Module& module) {
  return (... || (module.as<Layers>() != nullptr));
}

bool is_supported(const Module& module) {
  return is_one_of<torch::nn::LinearImpl, torch::nn::Conv1dImpl, torch::nn::Conv2dImpl,
                   torch::nn::Conv3dImpl, torch::nn::ConvTranspose1dImpl,
                   torch::nn::ConvTranspose2dImpl, torch::nn::ConvTranspose3dImpl>(module);
}

// Those of layers that the options do not skip.
NamedTensors parameters_of_layers(const Module& root, const LayerwiseCastingOptions& options) {
  std::vector<std::regex> patterns;
  for (const std::string& pattern : options.skip_modules_pattern) {
    try {
      patterns.emplace_back(pattern, std::regex::ECMAScript | std::regex::optimize);
    } catch (const std::regex_error& error) {
      TORCH_CHECK_VALUE(false, "attach_layerwise_casting_hooks: skip_modules_pattern \"", pattern,
                        "\" is not a regular expression: ", error.what());
    }
  }
  NamedTensors parameters;
  const auto collect = [&](const auto& self, const Module& module,
                           const std::string& name) -> void {
    const auto is_found = [&](const std::regex& each) { return std::regex_search(name, each); };
    if (std::ranges::count(options.skip_modules_classes, module_class_name(module)) > 0) return;
    if (std::ranges::any_of(patterns, is_found)) return;
    if (is_supported(module)) return append_parameters(module, name, /*recurse=*/false, parameters);
    for (const auto& child : module.named_children()) {
      if (!child.value()) continue;
      self(self, *child.value(), name.empty() ? child.key() : absl::StrCat(name, ".", child.key()));
    }
  };
  collect(collect, root, "");
  return parameters;
}

void end_cast(const at::Tensor& tensor) {
  const Cast* const cast = find_cast(tensor);
  if (cast == nullptr) return;
  internal::rebind(tensor, cast->stored());
}

}  // namespace

void attach_layerwise_casting_hooks(Module& module, at::ScalarType storage_dtype,
                                    at::ScalarType compute_dtype,
                                    const LayerwiseCastingOptions& options) {
  const Dtypes dtypes = {storage_dtype, compute_dtype, options.non_blocking};
  dtypes.check();
  cast(parameters_of_layers(module, options), dtypes);
}

LayerwiseCastingHook::LayerwiseCastingHook(at::ScalarType storage_dtype,
                                           at::ScalarType compute_dtype, bool non_blocking)
    : storage_dtype_(storage_dtype), compute_dtype_(compute_dtype), non_blocking_(non_blocking) {
  Dtypes{storage_dtype, compute_dtype, non_blocking}.check();
}

void LayerwiseCastingHook::init_hook(Module& module) {
  NamedTensors parameters;
  append_parameters(module, "", /*recurse=*/true, parameters);
  cast(parameters, {storage_dtype_, compute_dtype_, non_blocking_});
}

void LayerwiseCastingHook::detach_hook(Module& module) {
  for (const at::Tensor& parameter : module.parameters()) end_cast(parameter);
}

namespace internal {

void end_casts(const Module& module) {
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) end_cast(parameter);
}

bool is_cast(const at::Tensor& parameter) { return find_cast(parameter) != nullptr; }

}  // namespace internal
}  // namespace accelerate
