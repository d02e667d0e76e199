#include "accelerate/big_model/empty_model.h"

#include <exception>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_join.h"
#include "accelerate/big_model/module_tensors.h"
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
  std::vector<at::Tensor> tensors;
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : named_module_tensors(module)) {
    if (!tensor.is_meta() || (options.filter && !options.filter(name))) continue;
    if (is_recorded(tensor)) {
      tensors.push_back(tensor);
    } else {
      unknown.push_back(name);
    }
  }
  TORCH_CHECK_VALUE(
      unknown.empty(), "materialize: ", absl::StrJoin(unknown, ", "), " of ", module.name(),
      " was not made inside init_empty_weights or "
      "init_on_device(meta), or was replaced afterwards, so its values are not known");
  replay_construction(tensors, options.device);
}

}  // namespace accelerate
