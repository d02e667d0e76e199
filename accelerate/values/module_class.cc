#include "accelerate/values/module_class.h"

#include <string_view>

#include <torch/nn/module.h>

namespace accelerate {

std::string module_class_name(const torch::nn::Module& module) {
  std::string_view name = module.name();
  // A module that runs hooks is of its own class.
  constexpr std::string_view kHooked = "accelerate::Hooked<";
  if (name.starts_with(kHooked) && name.ends_with('>')) {
    name.remove_prefix(kHooked.size());
    name.remove_suffix(1);
  }
  // Template arguments may have namespaces of their own.
  const size_t scope = name.substr(0, name.find('<')).rfind("::");
  if (scope != name.npos) name.remove_prefix(scope + 2);
  if (name.ends_with("Impl") && name.size() > 4) name.remove_suffix(4);
  return std::string(name);
}

}  // namespace accelerate
