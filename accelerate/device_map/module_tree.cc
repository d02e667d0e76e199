#include "accelerate/device_map/module_tree.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "accelerate/base/words.h"

namespace accelerate {

absl::StatusOr<double> dtype_bytes(absl::string_view dtype) {
  static const auto& bytes = *new WordMap<double>(word_map<double>({
      {1.0 / 8, "bool uint1"},
      {2.0 / 8, "uint2 int2 quint2x4"},
      {3.0 / 8, "uint3"},
      {4.0 / 8, "uint4 int4 quint4x2"},
      {5.0 / 8, "uint5"},
      {6.0 / 8, "uint6"},
      {7.0 / 8, "uint7"},
      {1,
       "uint8 int8 quint8 qint8 fp8 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
       "bits8"},
      {2, "int16 uint16 short float16 half bfloat16 bits16"},
      {4, "int32 int uint32 qint32 float32 float complex32"},
      {8, "int64 long uint64 float64 double complex64"},
      {16, "complex128"},
  }));
  const auto found = bytes.find(absl::StripPrefix(dtype, "torch."));
  if (found == bytes.end()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", dtype, "\" is not a dtype"));
  }
  return found->second;
}

bool is_kept_dtype(absl::string_view dtype) {
  const absl::string_view name = absl::StripPrefix(dtype, "torch.");
  return name.starts_with("uint") || name.starts_with("int") || name.starts_with("bool");
}

ModuleTree::ModuleTree(std::string root_class) {
  modules_.push_back({.name = "", .class_name = std::move(root_class)});
}

ModuleTree::Module ModuleTree::add_module(Module parent, std::string name, std::string class_name) {
  const Module added = static_cast<Module>(modules_.size());
  modules_.push_back(
      {.name = std::move(name), .class_name = std::move(class_name), .parent = parent});
  modules_[static_cast<size_t>(parent)].children.push_back(added);
  return added;
}

ModuleTree::Tensor ModuleTree::add_tensor(Module module, TensorInfo tensor) {
  const Tensor added = static_cast<Tensor>(tensors_.size());
  tensor.module = module;
  tensor.identity = added;
  ModuleInfo& owner = modules_[static_cast<size_t>(module)];
  (tensor.is_buffer ? owner.buffers : owner.parameters).push_back(added);
  tensors_.push_back(std::move(tensor));
  return added;
}

void ModuleTree::tie(Tensor earlier, Tensor later) {
  const TensorInfo& first = tensors_[static_cast<size_t>(earlier)];
  TensorInfo& tied = tensors_[static_cast<size_t>(later)];
  tied.identity = first.identity;
  tied.elements = first.elements;
  tied.dtype = first.dtype;
}

std::string ModuleTree::module_path(Module module) const {
  std::string path;
  for (Module each = module; this->module(each).parent >= 0; each = this->module(each).parent) {
    path.insert(
        0, path.empty() ? this->module(each).name : absl::StrCat(this->module(each).name, "."));
  }
  return path;
}

std::string ModuleTree::tensor_path(Tensor tensor) const {
  const TensorInfo& info = this->tensor(tensor);
  const std::string module = module_path(info.module);
  return module.empty() ? info.name : absl::StrCat(module, ".", info.name);
}

std::vector<ModuleTree::Module> ModuleTree::modules_in_order() const {
  std::vector<Module> order;
  order.reserve(modules_.size());
  std::vector<Module> open = {0};
  while (!open.empty()) {
    const Module next = open.back();
    open.pop_back();
    order.push_back(next);
    const std::vector<Module>& children = module(next).children;
    open.insert(open.end(), children.rbegin(), children.rend());
  }
  return order;
}

std::vector<ModuleTree::Tensor> ModuleTree::tensors_in_order() const {
  const std::vector<Module> modules = modules_in_order();
  std::vector<Tensor> order;
  order.reserve(tensors_.size());
  for (const auto kind : {&ModuleInfo::parameters, &ModuleInfo::buffers}) {
    for (const Module each : modules) {
      const std::vector<Tensor>& own = module(each).*kind;
      order.insert(order.end(), own.begin(), own.end());
    }
  }
  return order;
}

ModuleTree::Module ModuleTree::find_module(absl::string_view path) const {
  Module found = 0;
  while (!path.empty()) {
    const absl::string_view name = path.substr(0, path.find('.'));
    const std::vector<Module>& children = module(found).children;
    const auto child =
        std::ranges::find_if(children, [&](Module each) { return module(each).name == name; });
    if (child == children.end()) return -1;
    found = *child;
    path.remove_prefix(std::min(name.size() + 1, path.size()));
  }
  return found;
}

ModuleTree::Tensor ModuleTree::find_tensor(absl::string_view path) const {
  const size_t dot = path.rfind('.');
  const Module owner = dot == path.npos ? 0 : find_module(path.substr(0, dot));
  if (owner < 0) return -1;
  const absl::string_view name = dot == path.npos ? path : path.substr(dot + 1);
  for (const auto kind : {&ModuleInfo::parameters, &ModuleInfo::buffers}) {
    for (const Tensor each : module(owner).*kind) {
      if (tensor(each).name == name) return each;
    }
  }
  return -1;
}

std::vector<std::vector<std::string>> ModuleTree::tied_parameters() const {
  std::vector<std::vector<std::string>> groups;
  std::map<Tensor, size_t> group_of;  // by identity
  for (const Tensor each : tensors_in_order()) {
    if (tensor(each).is_buffer) continue;
    const auto [group, is_new] = group_of.try_emplace(tensor(each).identity, groups.size());
    if (is_new) groups.emplace_back();
    groups[group->second].push_back(tensor_path(each));
  }
  std::erase_if(groups, [](const auto& names) { return names.size() < 2; });
  for (std::vector<std::string>& group : groups) std::ranges::sort(group);
  return groups;
}

}  // namespace accelerate
