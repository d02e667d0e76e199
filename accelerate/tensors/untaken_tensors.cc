#include "accelerate/tensors/untaken_tensors.h"

#include <utility>

#include <c10/util/Exception.h>

namespace accelerate::internal {

UntakenTensors::UntakenTensors(NamedTensors tensors, std::string where) : where_(std::move(where)) {
  for (auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(tensors_.emplace(name, std::move(tensor)).second, where_, " has two \"", name,
                      "\"");
  }
}

at::Tensor UntakenTensors::take(const std::string& name) {
  auto taken = tensors_.extract(name);
  return taken ? std::move(taken.mapped()) : at::Tensor();
}

void UntakenTensors::check_all_taken(const char* what) const {
  TORCH_CHECK_VALUE(tensors_.empty(), where_, " has \"", tensors_.begin()->first, "\", which ",
                    what);
}

}  // namespace accelerate::internal
