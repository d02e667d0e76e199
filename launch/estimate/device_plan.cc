#include "launch/estimate/device_plan.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/dtype_names.h"

namespace accelerate::launcher::estimate {
namespace {

// A part of a name; numbers come before words.
std::pair<int64_t, std::string> key_of(const std::string& part) {
  int64_t number = 0;
  if (absl::SimpleAtoi(part, &number)) return {number, ""};
  return {INT64_MAX, part};
}

// A device map's name for a dtype that safetensors calls so.
std::string dtype_of(const std::string& name) {
  const DtypeName* known = find_dtype(&DtypeName::safetensors, name);
  return known == nullptr || name == "BOOL" ? "uint8" : std::string(known->torch);
}

}  // namespace

ModuleTree module_tree(const Architecture& architecture) {
  struct Named {
    std::vector<std::string> parts;
    std::vector<std::pair<int64_t, std::string>> key;
    const ArchitectureTensor* tensor;
  };
  std::vector<Named> tensors;
  std::map<std::string, const ArchitectureTensor*> by_name;
  const auto add = [&](const std::string& name, const ArchitectureTensor& tensor) {
    Named& named = tensors.emplace_back(Named{absl::StrSplit(name, '.'), {}, &tensor});
    for (const std::string& part : named.parts) named.key.push_back(key_of(part));
  };
  for (const ArchitectureTensor& each : architecture.tensors) {
    add(each.name, each);
    by_name.emplace(each.name, &each);
  }
  for (const std::vector<std::string>& group : architecture.tied) {
    for (size_t i = 1; i < group.size(); ++i) add(group[i], *by_name.at(group[0]));
  }
  std::ranges::stable_sort(tensors, {}, &Named::key);

  const std::set<std::string> no_split(architecture.no_split.begin(), architecture.no_split.end());
  ModuleTree tree;
  std::map<std::string, ModuleTree::Module> modules = {{"", 0}};
  for (const Named& named : tensors) {
    std::string path;
    ModuleTree::Module module = 0;
    for (size_t i = 0; i + 1 < named.parts.size(); ++i) {
      path = path.empty() ? named.parts[i] : absl::StrCat(path, ".", named.parts[i]);
      const auto [found, is_new] = modules.try_emplace(path, 0);
      if (is_new) {
        found->second = tree.add_module(module, named.parts[i],
                                        no_split.contains(path) ? kNoSplitClass : "Module");
      }
      module = found->second;
    }
    tree.add_tensor(module, {.name = named.parts.back(),
                             .dtype = dtype_of(named.tensor->dtype),
                             .elements = named.tensor->elements});
  }
  for (const std::vector<std::string>& group : architecture.tied) {
    const ModuleTree::Tensor first = tree.find_tensor(group[0]);
    for (size_t i = 1; i < group.size(); ++i) tree.tie(first, tree.find_tensor(group[i]));
  }
  return tree;
}

}  // namespace accelerate::launcher::estimate
