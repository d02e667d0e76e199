#include "accelerate/big_model/empty_model.h"

#include <algorithm>
#include <exception>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_join.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

bool includes_buffers(std::optional<bool> chosen) {
  if (chosen) return *chosen;
  return Runtime::find_current() != nullptr &&
         parse_flag_from_env("ACCELERATE_INIT_INCLUDE_BUFFERS");
}

}  // namespace

EmptyInit::EmptyInit(c10::Device device, bool include_buffers)
    : scope_(device), include_buffers_(include_buffers), exceptions_(std::uncaught_exceptions()) {}

EmptyInit::~EmptyInit() noexcept(false) {
  if (include_buffers_ || std::uncaught_exceptions() > exceptions_) return;
  scope_.undo([](const at::Tensor& tensor) { return !tensor.requires_grad(); });
}

EmptyInit init_empty_weights(std::optional<bool> include_buffers) {
  return EmptyInit(c10::kMeta, includes_buffers(include_buffers));
}

EmptyInit init_on_device(c10::Device device, std::optional<bool> include_buffers) {
  return EmptyInit(device, includes_buffers(include_buffers));
}

void materialize(torch::nn::Module& module, const MaterializeOptions& options) {
  constexpr NamedModuleTensorsOptions kAll = {.recurse = true, .remove_duplicate = false};
  std::vector<at::Tensor> tensors, others;
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : named_module_tensors(module, kAll)) {
    if (!tensor.is_meta()) continue;
    if (options.filter && !options.filter(name)) {
      others.push_back(tensor);
    } else if (is_recorded(tensor)) {
      tensors.push_back(tensor);
    } else {
      unknown.push_back(name);
    }
  }
  TORCH_CHECK_VALUE(
      unknown.empty(), "materialize: ", absl::StrJoin(unknown, ", "), " of ", module.name(),
      " was not made inside init_empty_weights or "
      "init_on_device(meta), or was replaced afterwards, so its values are not known");
  // Ties get their values together.
  absl::flat_hash_set<const void*> chosen;
  for (const at::Tensor& tensor : tensors) chosen.insert(id_tensor_storage(tensor).storage);
  const bool is_last = std::all_of(others.begin(), others.end(), [&chosen](const auto& tensor) {
    return chosen.contains(id_tensor_storage(tensor).storage);
  });
  replay_construction(tensors, options.device, is_last);
}

}  // namespace accelerate
