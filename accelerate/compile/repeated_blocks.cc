#include "accelerate/compile/repeated_blocks.h"

#include <algorithm>

#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

std::string below(const std::string& name, const std::string& child) {
  return name.empty() ? child : absl::StrCat(name, ".", child);
}

void append_names(const torch::nn::Module& module, const std::string& name,
                  std::vector<std::string>& names) {
  const bool is_list = is_repeated_blocks(module);
  if (!is_list && !has_repeated_blocks(module)) {
    names.push_back(name);
    return;
  }
  for (const auto& child : module.named_children()) {
    const std::string child_name = below(name, child.key());
    if (is_list) {
      names.push_back(child_name);
    } else {
      append_names(*child.value(), child_name, names);
    }
  }
}

}  // namespace

bool is_repeated_blocks(const torch::nn::Module& module) {
  if (module_class_name(module) != "ModuleList") return false;
  const auto blocks = module.children();
  return !blocks.empty() && std::ranges::all_of(blocks, [&blocks](const auto& block) {
    return module_class_name(*block) == module_class_name(*blocks.front());
  });
}

bool has_repeated_blocks(const torch::nn::Module& module) {
  return is_repeated_blocks(module) ||
         std::ranges::any_of(module.children(),
                             [](const auto& child) { return has_repeated_blocks(*child); });
}

std::vector<std::string> region_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  append_names(module, "", names);
  return names;
}

}  // namespace accelerate
