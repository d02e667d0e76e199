/// Which module a tensor is a parameter or buffer of.
///
/// C++ modules have no hooks that would tell when one is called, so an operator's module is found
/// by what it is given: whoever touches "fc1.weight", or a view of it, works for "fc1". Operators
/// that touch no parameter (an activation, a loss) have no module.
/// Threads: immutable; any.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

class ModuleNames {
 public:
  ModuleNames() = default;
  /// The names within each module; of a parameter that several share, the first one's.
  /// A parameter of the module itself is under the name of its class.
  explicit ModuleNames(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

  /// Empty if the tensor belongs to none.
  const std::string& of(const at::Tensor& tensor) const;

 private:
  // A view has its parameter's storage; a parameter that was moved has another than it had.
  std::unordered_map<const c10::TensorImpl*, std::string> name_by_tensor_;
  std::unordered_map<const c10::StorageImpl*, std::string> name_by_storage_;
};

}  // namespace accelerate
